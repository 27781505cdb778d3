"""Experiments: what the layer and its operation can do, measured."""
