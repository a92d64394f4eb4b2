"""Trials of a training job: short runs of the user's own script, measured step by step, to compare and to search."""
