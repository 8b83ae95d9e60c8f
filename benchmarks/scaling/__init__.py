"""How far the scheduler scales: its real cores on graphs of large models, on paper."""
