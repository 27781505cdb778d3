"""A mixture of regressors that learns a stream token by token, with nothing trained."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from swila.experiments.switching_regression.stream import Stream
from swila.ops import SwitchingState, switching_delta_rule_step


class Trace(NamedTuple):
    """Errors and responsibilities of a mixture on a stream."""

    error: Tensor  # [B, T], squared prediction error relative to the mean square of the values
    responsibilities: Tensor  # [B, T, J, D]


def follow(stream: Stream, mixtures: int, gate: float = 0.05, seed: int = 0) -> Trace:
    """Predict and learn token by token with a temporal mixture: uniform priors, β = 1, sticky gates.

    The regressors start from different random weights: from equal ones they would stay equal.
    """
    B, T, D = stream.keys.shape
    generator = torch.Generator().manual_seed(2 * seed + 1)  # not the seed of the maps
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
