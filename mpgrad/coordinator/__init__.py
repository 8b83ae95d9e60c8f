"""The coordinator process: the shell around ``scheduler.coordinator_state``, and the supervisor.

Not here: decisions about tasks (see ``scheduler``), and NumPy. Begin with ``coordinator``.
"""
