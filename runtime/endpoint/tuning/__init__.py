"""Hyperparameter tuning jobs: a small record each, and training jobs that the endpoint creates from it.

Whatever a tuning job knows is its record and its training jobs, so a server that is killed goes on where it was.
"""
