"""A backward while it runs: its thread's state, nesting, and what a failure undoes."""
