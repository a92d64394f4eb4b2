"""Readers for training scripts: epochs of a Pipe channel, RecordIO, augmented manifests, and what is inside records.

Standard library only, so that it runs in any image; :mod:`hotfire.runtime.data.torch` alone needs torch.
"""
