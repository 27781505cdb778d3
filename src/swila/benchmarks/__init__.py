"""Benchmarks: always side by side in one run, never of something that is wrong."""
