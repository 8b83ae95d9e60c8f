"""The page about a profile: figures, advice, a timeline and the graph, in one HTML file."""
