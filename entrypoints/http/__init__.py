"""HTTP in front of :mod:`hotfire.runtime.endpoint`: transport, routing, wire forms; no knowledge of training jobs."""
