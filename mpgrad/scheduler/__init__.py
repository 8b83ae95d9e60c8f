"""The pure core: events in, instructions out; no sockets, clock, threads, arrays or randomness."""
