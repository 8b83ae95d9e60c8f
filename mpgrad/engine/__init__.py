"""The engine: where a frozen graph is executed, here or in worker processes."""
