"""Whether a Function's backward may run on a worker, and how its code gets there."""
