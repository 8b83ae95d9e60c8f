"""The coordinator process: the shell around ``scheduler.CoordinatorState``, and the supervisor."""
