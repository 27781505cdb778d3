"""Pieces of the layers written again, in plain torch and without the operation."""

import torch
from torch.nn import functional as F


def conv(module, x):
    """torch's own depthwise convolution, padded on the left."""
    y = F.conv1d(F.pad(x.mT, (module.width - 1, 0)), module.weight.unsqueeze(1), module.bias, groups=module.channels).mT
    return F.silu(y) if module.activation else y


def delta_rule(q, k, v, beta, alpha=None):
    """As matrices: W = W Diag(α) (I - β k kᵀ) + β v kᵀ, o = W q; one sequence and head at a time."""
    o = torch.empty_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            W = q.new_zeros(v.shape[-1], q.shape[-1])
            for t in range(q.shape[1]):
                key, rate = k[b, t, h], beta[b, t, h]
                if alpha is not None:
                    W = W * alpha[b, t, h]
                W = W @ (torch.eye(len(key), dtype=W.dtype) - rate * torch.outer(key, key))
                W = W + rate * torch.outer(v[b, t, h], key)
                o[b, t, h] = W @ q[b, t, h]
    return o


def rms(layer, o):
    return o / (o.square().mean(-1, keepdim=True) + layer.o_norm.eps).sqrt() * layer.o_norm.weight


def decay(gate, x):
    full = gate.proj(x) + gate.dt_bias
    return torch.exp(-gate.A_log.exp()[:, None] * torch.log1p(full.exp()).unflatten(-1, (gate.groups, gate.width)))
