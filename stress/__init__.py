"""Runs that try to break the executor: bounded in time and count, each with a verdict."""
