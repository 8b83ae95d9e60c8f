"""What a profile records, and what is made of it: events, sums by name, and a trace.

Not here: the page about a profile (see ``engine.report``). Begin with ``ranges``.
"""
