"""What several hosts decide together: who is there, who adds what, and in which order.

As in ``scheduler``: no sockets, clock, threads, arrays or randomness. Begin with
``host_membership``.
"""
