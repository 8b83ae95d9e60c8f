"""A recorded graph becomes tables: what runs, in which order, at what cost."""
