r"""Online regression when the map keeps switching: the recurrence at work, with nothing trained.

A sequence holds C random linear maps. For a while ``v_t = M_c k_t + noise``, then another map takes over, unannounced.
The state sees each pair once. Before the update with ``(k_t, v_t)`` it must predict ``v_t``, and does so as
``Σ_j r_{t-1,j} (w_{t-1,j} · k_t)``. One regressor (J = 1, the delta rule) relearns after every switch; a mixture finds
by online EM which of its regressors explains the present map, and comes back to the one that already knows it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops import SwitchingState, switching_delta_rule_step


class Stream(NamedTuple):
    """Sequences of pairs whose map switches."""

    keys: Tensor  # [B, T, D], unit norm
    values: Tensor  # [B, T, D]
    context: Tensor  # [B, T], which map is at work
    age: Tensor  # [B, T], tokens since the last switch


class Trace(NamedTuple):
    """What a mixture did on a stream."""

    error: Tensor  # [B, T], squared prediction error relative to the mean square of the values
    responsibilities: Tensor  # [B, T, J, D]


def make_stream(
    B: int = 32, T: int = 1024, D: int = 16, contexts: int = 4, run: int = 32, noise: float = 0.1, seed: int = 0
) -> Stream:
    """Draw a stream in which maps last between ``run / 2`` and ``3 run / 2`` tokens.

    For example with 2 contexts and a run of 4 the context reads ``0 0 0 1 1 1 1 1 0 0 ...`` and the age
    ``0 1 2 0 1 2 3 4 0 1 ...``.
    """
    generator = torch.Generator().manual_seed(2 * seed)
    maps = 2 * torch.randn(B, contexts, D, D, generator=generator)
    context, age = torch.empty(B, T, dtype=torch.long), torch.empty(B, T, dtype=torch.long)
    for b in range(B):
        t, now = 0, int(torch.randint(contexts, (1,), generator=generator))
        while t < T:
            length = int(torch.randint(max(run // 2, 1), 3 * run // 2 + 1, (1,), generator=generator))
            context[b, t : t + length] = now
            age[b, t : t + length] = torch.arange(min(length, T - t))
            step = int(torch.randint(1, max(contexts, 2), (1,), generator=generator))
            t, now = t + length, (now + step) % contexts
    keys = F.normalize(torch.randn(B, T, D, generator=generator), dim=-1)
    active = maps[torch.arange(B)[:, None], context]
    values = torch.einsum("btij,btj->bti", active, keys) + noise * torch.randn(B, T, D, generator=generator)
    return Stream(keys, values, context, age)


def follow(stream: Stream, mixtures: int, gate: float = 0.05, seed: int = 0) -> Trace:
    """Predict and learn token by token with a temporal mixture: uniform priors, β = 1, sticky gates.

    The regressors start from different random weights: from equal ones they would stay equal.
    """
    B, T, D = stream.keys.shape
    generator = torch.Generator().manual_seed(2 * seed + 1)  # never the numbers the maps were drawn with
    uniform = torch.full((B, 1, mixtures, D), 1 / mixtures)
    W, r = 0.5 * torch.randn(B, 1, mixtures, D, D, generator=generator), uniform
    state: SwitchingState | None = SwitchingState(W, r, uniform)
    logits, beta, gates = torch.zeros_like(uniform), torch.ones_like(uniform), torch.full((B, 1, D), gate)
    errors, trace = torch.empty(B, T), torch.empty(B, T, mixtures, D)
    with torch.inference_mode():
        for t in range(T):
            k, v = stream.keys[:, t].unsqueeze(1), stream.values[:, t].unsqueeze(1)
            guesses = torch.einsum("bhjvk,bhk->bhjv", W, k)
            errors[:, t] = (v - (r * guesses).sum(2)).square().mean((1, 2))
            _, state, _ = switching_delta_rule_step(
                k, k, v, beta, logits, logits, key_gate=gates, query_gate=gates, initial_state=state
            )
            assert state is not None
            assert state.r is not None
            W, r = state.W, state.r
            trace[:, t] = r[:, 0]
    return Trace(errors / stream.values.square().mean(), trace)


def summarize(stream: Stream, trace: Trace) -> dict[str, float]:
    """Mean relative error in the second half of the sequences: over all tokens, and by tokens since the switch."""
    half = stream.context.shape[1] // 2
    error, age = trace.error[:, half:], stream.age[:, half:]
    groups = {"all": age >= 0, "0-3": age < 4, "4-7": (age >= 4) & (age < 8), "16+": age >= 16}
    return {name: error[tokens].mean().item() for name, tokens in groups.items()}
