"""The recorded graph: Nodes, Edges, the sinks at leaves, and the hooks that hang on them."""
