"""Benchmarks: mpgrad compared with its peers, in one run on one machine.

``scripts/bench`` runs them; ``scripts/bench --write docs/benchmarks.md`` writes the document.
"""
