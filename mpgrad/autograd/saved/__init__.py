"""What forward keeps for backward, and the hooks that pack it."""
