"""The pure core: events in, instructions out; no sockets, clock, threads, arrays or randomness.

Not here: any side effect, and what the Nodes of a task compute. Begin with ``coordinator_state``.
"""
