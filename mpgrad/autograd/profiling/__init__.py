"""What a profile records, and what is made of it: events, sums by name, and a trace."""
