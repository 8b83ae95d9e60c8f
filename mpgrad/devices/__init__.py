"""Which device an array lies on, and everything of a GPU."""
