"""CUDA C++ kernels compiled at first use: sources (``kernels``), specialisations, compiler and cache, the backend."""
