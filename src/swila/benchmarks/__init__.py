"""Benchmarks; everything that is compared runs in one process, and is checked before it is timed."""
