"""Benchmarks: mpgrad beside its peers, in one run, on the machine at hand.

``scripts/bench`` runs them; ``scripts/bench --write docs/benchmarks.md`` writes the document.
"""
