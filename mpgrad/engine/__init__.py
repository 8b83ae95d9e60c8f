"""The engine: executes a frozen graph in this process or in workers."""
