"""Calls of operators: the backend, the forward, the Node."""
