"""The devices of arrays, and everything of GPUs."""
