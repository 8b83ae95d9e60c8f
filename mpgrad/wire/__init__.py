"""What crosses between processes: messages, their bytes, and the lanes they travel on."""
