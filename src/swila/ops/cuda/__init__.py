"""CUDA C++ kernels compiled at first use: sources (``kernels``), their table, arguments, compiler, and the backend."""
