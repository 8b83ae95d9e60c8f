"""The coordinator process: shells around ``scheduler.CoordinatorState``, and the supervisor."""
