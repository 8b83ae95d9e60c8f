"""What ``scripts/gpu_check`` runs on a machine with a GPU: tests, benchmarks, one report.

Each benchmark is a module of its own that is run as a process of its own and prints one JSON
object, so that one that fails costs nothing but its row.
"""
