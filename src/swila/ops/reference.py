r"""The switching delta rule, token by token: the specification that all other backends are tested against.

Per batch row, head, token ``t``, mixture ``j`` and output dimension ``d``, with ``w_jd`` a row of the state
(equation names are the paper's labels):

.. math::

    \tilde w_{jd} &= \alpha_t \odot w_{t-1,jd}                                      && \text{gate-elementwise} \\
    \delta_{jd} &= v_{td} - k_t \cdot \tilde w_{jd}  \quad\text{or}\quad
                   v_{td} - k_t \cdot w_{t-1,jd}                                    && \text{pre-decay, post-decay} \\
    p_{jd} &= \pi_{jd}(k_t)  \quad\text{or}\quad
              (1 - g^k_{td})\, r_{t-1,jd} + g^k_{td}\, \pi_{jd}(k_t)                && \text{plain or temporal prior} \\
    r_{jd} &= p_{jd} e^{-\delta_{jd}^2/2} \Big/ \sum_i p_{id} e^{-\delta_{id}^2/2}  && \text{responsibility} \\
    w_{t,jd} &= \tilde w_{jd} + \beta_{tjd}\, r_{jd}\, \delta_{jd}\, k_t            && \text{recurrence} \\
    \rho_{jd} &= \pi_{jd}(q_t)  \quad\text{or}\quad
                 (1 - g^q_{td})\, \rho_{t-1,jd} + g^q_{td}\, \pi_{jd}(q_t)          && \text{plain or temporal mix} \\
    o_{td} &= \sum_j \rho_{jd}\, (w_{t,jd} \cdot q_t)                               && \text{retrieval}

Unnormalised responsibilities (``normalize=False``) are ``p e^{-δ²/2}`` without the denominator. The statistics are
computed from them, with ``-Σ r log r`` in place of the entropy.

The implementation uses plain torch operations under autograd: it is differentiable any number of times, on any device
and in any floating dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from swila.ops.backends import Backend
from swila.ops.call import DIFFERENTIABLE, STATE, Inputs, Options, Results, without_autocast
from swila.ops.validation import sequence_bounds


def token_loop(x: Inputs, options: Options, operand: Callable[[Tensor], Tensor] = lambda t: t) -> Results:
    """Results for ``B`` sequences of equal length, from the state ``x.W, x.r, x.rho`` (0 and ``1/J`` where None).

    The fields of the statistics hold sums over tokens, not means.

    Args:
        x: Tensors of the call, in the compute dtype.
        options: Options of the call.
        operand: Applied to the operands of products with the state, to model their rounding in matrix units.
    """
    B, T, H, K = x.q.shape
    J, V = x.beta.shape[3:]
    tiny = torch.finfo(x.q.dtype).tiny  # replaces probabilities that have underflowed
    W = x.q.new_zeros(B, H, J, V, K) if x.W is None else x.W
    r = x.q.new_full((B, H, J, V), 1 / J) if x.r is None else x.r
    log_r: Tensor | None = None
    rho = x.q.new_full((B, H, J, V), 1 / J) if x.rho is None else x.rho
    log_pi_k = x.key_logits.log_softmax(3)
    log_pi_q = x.query_logits.log_softmax(3)
    outputs: list[Tensor] = []
    sums: list[Tensor] = []

    for t in range(T):
        k, q, v = x.k[:, t, :, None, None, :], x.q[:, t, :, None, None, :], x.v[:, t, :, None, :]
        W_decayed = W if x.log_decay is None else x.log_decay[:, t].exp() * W

        u = (k * operand(W_decayed if options.decay_order == "pre" else W)).sum(-1)
        delta = v - u

        log_p = log_pi_k[:, t]
        if x.key_gate is not None:
            g = x.key_gate[:, t, :, None, :]
            if log_r is None:
                log_p = _bounded(torch.lerp(r, log_p.exp(), g)).clamp_min(tiny).log()
            else:
                log_p = _log_blend(log_r, log_p, g)
        log_r = log_p - 0.5 * delta.square()
        if options.normalize:
            log_r = log_r.log_softmax(2)
        r = log_r.exp()

        W = W_decayed + operand(x.beta[:, t] * r * delta).unsqueeze(-1) * k

        log_rho = log_pi_q[:, t]
        if x.query_gate is None:
            rho = log_rho.exp()
        else:
            rho = torch.lerp(rho, log_rho.exp(), x.query_gate[:, t, :, None, :])
            log_rho = rho.clamp_min(tiny).log()
        outputs.append((rho * (operand(W) * q).sum(-1)).sum(2))

        if options.routing_stats:
            least = math.log(tiny)  # a mixture with a logit of -inf contributes nothing to the entropy
            token = r, -(r * log_r.clamp_min(least)).sum(2), rho, -(rho * log_rho.clamp_min(least)).sum(2)
            parts = [part.sum(0) for part in token]
            sums = [total + part for total, part in zip(sums, parts, strict=True)] if sums else parts

    output = torch.stack(outputs, 1)
    carried = W, r if x.key_gate is not None else None, rho if x.query_gate is not None else None
    return Results(output, *carried, *sums)


def differentiable_forward(x: Inputs, options: Options, operand: Callable[[Tensor], Tensor] = lambda t: t) -> Results:
    """The operation under autograd, in full precision; packed sequences are computed one after another."""
    dtype = x.v.dtype
    tokens = x.q.shape[0] * x.q.shape[1]
    with without_autocast(x.q.device):
        x = Inputs.of([*(None if t is None else t.to(x.compute_dtype) for t in x[:-1]), x.cu_seqlens])
        if x.cu_seqlens is None:
            results = token_loop(x, options, operand)
        else:
            results = _join([token_loop(sequence, options, operand) for sequence in _sequences(x)])
    means = [None if total is None else total / tokens for total in results.routing]
    state = results.final if options.return_state else (None, None, None)
    return Results(results.output.to(dtype), *state, *means)


def forward(x: Inputs, options: Options, save: bool) -> tuple[Results, list[Tensor]]:
    """Results without saved tensors: :func:`backward` recomputes the loop."""
    with torch.no_grad():
        return differentiable_forward(x, options), []


def backward(x: Inputs, options: Options, saved: list[Tensor], grads: Results) -> dict[str, Tensor]:
    """Gradients by recomputing the loop, in a separate thread: autograd is disabled inside a registered operator."""
    stream = torch.cuda.current_stream(x.q.device) if x.q.is_cuda else None
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_gradients, x, options, grads, stream).result()


def _gradients(x: Inputs, options: Options, grads: Results, stream: torch.cuda.Stream | None) -> dict[str, Tensor]:
    leaves = {name: t.detach().requires_grad_() for name in DIFFERENTIABLE if (t := getattr(x, name)) is not None}
    with torch.enable_grad(), torch.cuda.stream(stream):
        results = differentiable_forward(x._replace(**leaves), options)
        pairs = [(out, grad) for out, grad in zip(results, grads, strict=True) if out is not None and grad is not None]
        outputs, weights = zip(*pairs, strict=True)
        given = torch.autograd.grad(outputs, list(leaves.values()), weights, materialize_grads=True)
    return dict(zip(leaves, given, strict=True))


def _log_blend(log_r: Tensor, log_pi: Tensor, g: Tensor) -> Tensor:
    """``log((1 - g) r + g π)`` from logarithms; its derivatives with respect to them are within [0, 1]."""
    least = math.log(torch.finfo(g.dtype).tiny)
    log_r, log_pi, g = log_r.clamp_min(least), log_pi.clamp_min(least), _bounded(g.expand_as(log_r))
    most = torch.maximum((1 - g).log() + log_r, g.log() + log_pi).detach()
    return most + ((1 - g) * (log_r - most).exp() + g * (log_pi - most).exp()).log()


def _bounded(probability: Tensor) -> Tensor:
    """The same values, with the gradient clamped: it grows as the inverse of the probability."""
    if probability.requires_grad:
        steepest = torch.finfo(probability.dtype).max ** 0.75
        probability.register_hook(lambda grad: None if grad is None else grad.clamp(-steepest, steepest))
    return probability


def _sequences(x: Inputs) -> list[Inputs]:
    def cut(name: str, tensor: Tensor | None, i: int, begin: int, end: int) -> Tensor | None:
        if tensor is None or name == "cu_seqlens":
            return None
        return tensor[i : i + 1] if name in STATE else tensor[:, begin:end]

    bounds = enumerate(pairwise(sequence_bounds(x)))
    return [Inputs.of(cut(name, t, i, *pair) for name, t in x._asdict().items()) for i, pair in bounds]


def _join(parts: list[Results]) -> Results:
    output, *final_and_sums = zip(*parts, strict=True)
    final = [None if f[0] is None else torch.cat(f) for f in final_and_sums[:3]]
    sums = [None if f[0] is None else torch.stack(f).sum(0) for f in final_and_sums[3:]]
    return Results(torch.cat(output, 1), *final, *sums)


BACKEND = Backend(
    name="reference",
    summary="token loop in torch, the specification",
    forward=forward,
    backward=backward,
    differentiable=differentiable_forward,
    step=differentiable_forward,
    slow_on_gpu=True,
)
