"""PyTorch's own autograd tests, run against mpgrad: ``scripts/conformance``.

``source`` gets PyTorch's ``test_autograd.py``, which is never kept here; ``methods`` loads it and
runs one method. Meanwhile ``torch`` stands for mpgrad (``stand_in``), and ``harness`` for what that
file takes from PyTorch's test framework. ``isolation`` runs each method in a process of its own;
``page`` writes ``docs/evidence/conformance.md``. ``methods.toml`` says which methods are run,
``left.toml`` why some do not pass.
"""
