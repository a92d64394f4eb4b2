"""What would recompile, stall or go wrong on an accelerator, found in a run on this machine's CPU.

A *collector* in each worker (`collector`, installed as the shim "doctor") writes events and has
torch_xla write its trace; a *judge* (`judge`) turns the events of all ranks into findings and a
graph budget, without torch. Only the collector's modules (`watch_*`, `replicas`) need torch.
"""
