"""The CUDA kernels on the CPU, compiled by g++."""
