"""Basic types, settings, and facts about the machine."""
