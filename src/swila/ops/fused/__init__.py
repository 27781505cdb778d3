"""Fused pieces of a language model around the operation, in Triton, each with a twin in plain torch that defines it.

A piece is a function of tensors. It runs its Triton kernels on an NVIDIA GPU with Triton installed, and its twin
elsewhere; :func:`~swila.ops.fused.choice.use_fused` switches the kernels off. Kernels are registered as opaque
operators, so that a piece is the same under ``torch.compile`` and without it.
"""
