"""Simulated scaling of the scheduler: its real cores on graphs of large models."""
