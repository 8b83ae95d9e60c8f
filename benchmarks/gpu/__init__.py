"""``scripts/gpu_check``: tests and benchmarks on a machine with a GPU, and one report.

Each benchmark is a separate module that runs in a separate process and prints one JSON object, so
that a failure affects only its row.
"""
