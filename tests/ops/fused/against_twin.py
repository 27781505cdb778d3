"""Comparison of a fused piece with its twin in float64, on the same rounded inputs."""

import torch
from torch.testing import assert_close


def outputs_and_gradients(function, inputs, grads):
    """Return outputs and gradients of a function of tensors (None among them) as two flat lists."""
    inputs = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    outputs = function(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    found = torch.autograd.grad(outputs, wanted, [g.to(o.dtype) for g, o in zip(grads, outputs, strict=True)])
    return outputs, list(found), wanted


def check(function, twin, inputs, seed=0, roundings=2.0, compiled=False):
    """Check outputs and all gradients of ``function`` against ``twin`` in float64, to some roundings.

    Half precision is rounded once, or ``roundings / 2`` times; float32 is the precision of the computation itself.
    """
    with torch.device("cpu"):
        shapes = twin(*(None if t is None else t.cpu() for t in inputs))
        shapes = [shapes] if isinstance(shapes, torch.Tensor) else list(shapes)
        generator = torch.Generator().manual_seed(seed)
        grads = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in shapes]
    device = next(t.device for t in inputs if t is not None)
    grads = [g.to(device) for g in grads]
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    outputs, gradients, wanted = outputs_and_gradients(function, inputs, grads)
    wide = [None if t is None else (t.double() if t.is_floating_point() else t) for t in inputs]
    exact, exact_gradients, _ = outputs_and_gradients(twin, wide, [g.double() for g in grads])
    for found, expected, like in zip(
        [*outputs, *gradients], [*exact, *exact_gradients], [*shapes, *wanted], strict=True
    ):
        assert found.dtype == like.dtype
        assert found.shape == expected.shape
        eps = (16 if found.dtype == torch.float32 else roundings) * torch.finfo(found.dtype).eps
        scale = max(expected.abs().max().item(), 1e-30) if expected.numel() else 1.0
        assert_close(found.double(), expected, rtol=eps, atol=eps * scale)
