"""The one way to every operator: backend, forward, Node."""
