"""Messages between processes: their types, their bytes, and the lanes on which they travel."""
