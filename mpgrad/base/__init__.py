"""Basic types, settings, and what is known of the machine."""
