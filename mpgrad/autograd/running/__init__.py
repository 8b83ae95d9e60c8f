"""A running backward: the state of its thread, nesting, and the undo of a failure."""
