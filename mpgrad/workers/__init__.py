"""The worker processes that run NodeTasks, and the executor that the client uses, too."""
