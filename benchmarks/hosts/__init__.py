"""``scripts/bench hosts``: lanes between hosts beside Ray, and what a death costs."""
