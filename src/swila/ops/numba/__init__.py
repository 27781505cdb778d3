"""The token loop compiled by numba: ``functions`` (exp, log), ``kernels`` (forward, backward), the backend."""
