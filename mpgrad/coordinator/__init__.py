"""The coordinator process: the shell around ``scheduler.coordinator_state``, and the supervisor."""
