"""Device workers: the processes that run NodeTasks (and the executor that ``local`` shares)."""
