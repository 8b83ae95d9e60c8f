"""What several hosts decide together: who is there, who adds what, and in which order."""
