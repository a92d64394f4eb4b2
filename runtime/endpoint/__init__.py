"""A SageMaker-compatible endpoint without its transport: operations, logs, metrics and objects as values.

:mod:`hotfire.entrypoints.http` speaks HTTP; everything here is called with dicts and raises modelled errors.
"""
