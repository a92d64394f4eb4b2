"""What a training script uses: devices, collectives, the loop, checkpoints.

Importing this package imports nothing else. Modules that need torch say so and are imported where
they are used; `exec`, `shims`, `worker_record` and `world` need only the standard library.
"""
