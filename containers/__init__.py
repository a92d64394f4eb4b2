"""Speaks to a container engine and to registries; the only importer of the docker package."""
