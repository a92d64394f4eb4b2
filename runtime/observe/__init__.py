"""What is seen of a running job: logs, metrics, resources."""
