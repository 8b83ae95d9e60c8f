"""Calls: a function with its arguments, run and recorded in one process and asked for in another.

``travel`` makes bytes of a function and what it reaches, ``results`` of what it returns; ``branch``
runs it and keeps the graph that it records, the branch; ``kept_branches`` holds those of this
process, ``made_again`` makes one anew; ``fork_function`` is the Node that stands for a branch in
the graph of the caller. Nothing here knows processes.
"""
