"""Training programs that a job runs when it names no script of its own."""
