"""Measurements in a new interpreter, run by ``benchmarks.fresh``."""
