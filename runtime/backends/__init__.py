"""Ways to run the hosts of a job, behind :mod:`hotfire.runtime.backend`."""
