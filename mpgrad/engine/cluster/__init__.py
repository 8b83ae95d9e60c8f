"""Calls on the hosts of a cluster: ``Engine(cluster=...)``.

On each host an actor is the client of an engine. What travels to it are Requests, as to workers.
"""
