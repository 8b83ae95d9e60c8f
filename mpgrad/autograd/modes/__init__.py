"""What stands behind modes and overrides that users enter."""
