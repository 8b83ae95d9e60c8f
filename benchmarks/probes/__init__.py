"""What is measured in an interpreter of its own, by ``benchmarks.fresh``."""
