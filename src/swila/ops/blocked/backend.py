"""The blocked algorithm as a backend: loops over chunks, and saves states at chunk starts only."""

from __future__ import annotations

import torch
from torch import Tensor

from swila.ops.backends import Backend
from swila.ops.blocked.adjoint import adjoint
from swila.ops.blocked.algorithm import Chunk, Solved, State, advance, output, solve
from swila.ops.blocked.packing import Plan, Tokens, plan
from swila.ops.call import PER_TOKEN, Inputs, Options, Results, decay_kind, empty_results, kept_rows, without_autocast

CHUNK = 32


def forward(x: Inputs, options: Options, save: bool) -> tuple[Results, list[Tensor]]:
    """Process the chunks in order; with ``save``, save the state at the start of each."""
    results, kept = empty_results(x, options), saved_like(x, options) if save else []
    with without_autocast(x.q.device):
        layout, flat = plan(x, CHUNK), _flatten(x)
        state, flat_output = _initial_state(x, layout), results.output.flatten(0, 1)
        totals = [total.zero_() for total in results.routing if total is not None]
        for tokens in layout.chunks:
            here = tokens.sequences
            if save and tokens.kept is not None:
                for buffer, part in zip(kept, _carried(x, state), strict=True):
                    buffer[tokens.kept] = part[here]
            chunk, start = _load(flat, options, tokens), _shaped(x, _of(state, here))
            solved = solve(chunk, start)
            tokens.put(flat_output, output(chunk, solved))
            for part, new in zip(state, advance(chunk, solved, start), strict=True):
                part[here] = new.view_as(part[here])
            if totals:
                for total, part in zip(totals, _routing(x, tokens, solved), strict=True):
                    total += part
        for final, part in zip(results.final, state, strict=True):
            if final is not None:
                final[layout.order] = part
    return results, kept


def backward(x: Inputs, options: Options, kept: list[Tensor], grads: Results) -> dict[str, Tensor]:
    """Process the chunks in reverse order; each is recomputed from the state saved at its start."""
    with without_autocast(x.q.device):
        layout, flat = plan(x, CHUNK), _flatten(x)
        initial = _initial_state(x, layout)
        after = _final_adjoint(initial, layout, grads)
        given = {name: torch.empty_like(t) for name, t in flat._asdict().items() if t is not None and name in PER_TOKEN}
        for tokens in reversed(layout.chunks):
            here, ended = tokens.sequences, tokens.ended
            state = _of(initial, here)
            if tokens.kept is not None:
                state = _restored(x, state, [buffer[tokens.kept] for buffer in kept])
            chunk, start = _load(flat, options, tokens), _shaped(x, state)
            solved = solve(chunk, start)
            # Where a sequence ends here, the adjoint of its final r becomes that of log r.
            r_last = solved.r[:, -1].reshape(after.r[here].shape)
            after.r[ended] *= r_last[ended.start - here.start : ended.stop - here.start]
            do = torch.zeros_like(chunk.v)
            if grads.output is not None:
                do = tokens.take(grads.output.flatten(0, 1), x.compute_dtype).unsqueeze(2)
            extra = _routing_adjoint(x, tokens, solved, grads)
            inputs, before, dr = adjoint(chunk, solved, start, do, *extra, _shaped(x, _of(after, here)))
            for name, buffer in given.items():
                tokens.put(buffer, inputs[name] if name != "log_decay" else _as_given(flat, inputs[name]))
            for part, new in zip(after, before, strict=True):
                part[here] = new.view_as(part[here])
            if tokens.kept is None:
                after.r[here] = dr.view_as(after.r[here])
    gradients = {name: buffer.view_as(getattr(x, name)) for name, buffer in given.items()}
    for name, part in after._asdict().items():
        if getattr(x, name) is not None:
            gradients[name] = torch.empty_like(part).index_copy_(0, layout.order, part)
    return gradients


def saved_like(x: Inputs, options: Options) -> list[Tensor]:
    """States at the start of every chunk except the first of a sequence: W, and r and rho if the call carries them."""
    rows, (H, J, V), K = kept_rows(x, CHUNK), x.beta.shape[2:], x.q.shape[3]
    shapes = (rows, H, J, V, K), (rows, H, J, V), (rows, H, J, V)
    return _carried(x, State(*(x.q.new_empty(shape, dtype=x.compute_dtype) for shape in shapes)))


def _carried(x: Inputs, state: State) -> list[Tensor]:
    return [state.W] + [state.r] * (x.key_gate is not None) + [state.rho] * (x.query_gate is not None)


def _restored(x: Inputs, initial: State, kept: list[Tensor]) -> State:
    """The saved state; parts that the call does not carry are not used and have their initial value."""
    parts, carried = iter(kept), (True, x.key_gate is not None, x.query_gate is not None)
    return State(*(next(parts) if c else part for c, part in zip(carried, initial, strict=True)))


def _of(state: State, sequences: slice) -> State:
    return State(*(part[sequences] for part in state))


def _flatten(x: Inputs) -> Inputs:
    """Per-token inputs as ``[B T, H, ...]``."""
    return x._replace(**{name: t.flatten(0, 1) for name in PER_TOKEN if (t := getattr(x, name)) is not None})


def _initial_state(x: Inputs, layout: Plan) -> State:
    H, (J, V), K, N = x.q.shape[2], x.beta.shape[3:], x.q.shape[3], x.num_sequences
    uniform = x.q.new_full((N, H, J, V), 1 / J, dtype=x.compute_dtype)
    return State(
        x.q.new_zeros((N, H, J, V, K), dtype=x.compute_dtype) if x.W is None else x.W[layout.order].contiguous(),
        uniform if x.r is None else x.r[layout.order].contiguous(),
        uniform.clone() if x.rho is None else x.rho[layout.order].contiguous(),
    )


def _final_adjoint(like_state: State, layout: Plan, grads: Results) -> State:
    pairs = zip(like_state, grads.final, strict=True)
    return State(*(torch.zeros_like(like) if grad is None else grad[layout.order].contiguous() for like, grad in pairs))


def _shaped(x: Inputs, state: State) -> State:
    """A state ``[n, H, ...]`` in the shapes of the algorithm."""
    W, r, rho = (part.flatten(0, 1) for part in state)
    G = x.beta.shape[3] if x.log_decay is not None and decay_kind(x.log_decay) == "key" else 1
    return State(W.flatten(1, 2).unflatten(1, (G, -1)), r, rho)


def _load(flat: Inputs, options: Options, tokens: Tokens) -> Chunk:
    taken = {name: tokens.take(t, flat.compute_dtype) for name in PER_TOKEN if (t := getattr(flat, name)) is not None}
    log_decay = taken.get("log_decay")
    by_key = log_decay is not None and decay_kind(log_decay) == "key"
    if log_decay is not None:
        by_row = log_decay[..., 0].expand_as(taken["beta"]).flatten(2).unsqueeze(1)
        log_decay = log_decay[..., 0, :].transpose(1, 2) if by_key else by_row
    return Chunk(
        q=taken["q"].unsqueeze(1),
        k=taken["k"].unsqueeze(1),
        v=taken["v"].unsqueeze(2),
        beta=taken["beta"],
        log_pi=taken["key_logits"].log_softmax(2),
        pi_q=taken["query_logits"].softmax(2),
        g_k=taken["key_gate"].unsqueeze(2) if "key_gate" in taken else None,
        g_q=taken["query_gate"].unsqueeze(2) if "query_gate" in taken else None,
        log_decay=log_decay,
        by_key=by_key,
        decay_order=options.decay_order,
        normalize=options.normalize,
    )


def _as_given(flat: Inputs, grad: Tensor) -> Tensor:
    """The gradient of the log-decays in the granularity they came in."""
    assert flat.log_decay is not None
    kind = decay_kind(flat.log_decay)
    if kind == "key":
        return grad.transpose(1, 2).unsqueeze(3)
    by_row = grad.squeeze(1).unflatten(2, flat.beta.shape[2:]).unsqueeze(4)
    return by_row if kind == "value" else by_row.sum(3, keepdim=True)


def _routing(x: Inputs, tokens: Tokens, s: Solved) -> list[Tensor]:
    """Contribution of a chunk to usage and entropy, key side then query side."""
    weight = _token_weight(x, tokens, s)
    parts = []
    for probs in (s.r, s.rho):
        usage, entropy = weight * probs, -weight * torch.xlogy(probs, probs)
        parts += [usage.unflatten(0, (-1, x.q.shape[2])).sum((0, 2))]
        parts += [entropy.unflatten(0, (-1, x.q.shape[2])).sum((0, 2, 3))]
    return parts


def _routing_adjoint(x: Inputs, tokens: Tokens, s: Solved, grads: Results) -> tuple[Tensor | None, Tensor | None]:
    """Contribution of the statistics to ``r ⊙ dr`` and ``drho``; None if the loss does not depend on them."""
    if all(grad is None for grad in grads.routing):
        return None, None
    weight = _token_weight(x, tokens, s)
    sequences = s.r.shape[0] // x.q.shape[2]
    rdr, drho = torch.zeros_like(s.r), torch.zeros_like(s.rho)
    spread = [None if g is None else g.repeat(sequences, *[1] * (g.ndim - 1)).unsqueeze(1) for g in grads.routing]
    key_usage, key_entropy, query_usage, query_entropy = spread
    if key_usage is not None:
        rdr += weight * s.r * key_usage
    if key_entropy is not None:
        rdr -= weight * (torch.xlogy(s.r, s.r) + s.r) * key_entropy.unsqueeze(2)
    if query_usage is not None:
        drho += weight * query_usage
    if query_entropy is not None:
        log_rho = s.rho.clamp_min(torch.finfo(s.rho.dtype).tiny).log()
        drho -= weight * (log_rho + 1) * query_entropy.unsqueeze(2)
    return rdr, drho


def _token_weight(x: Inputs, tokens: Tokens, s: Solved) -> Tensor:
    """``1 / (B T)`` for tokens, 0 for padding, ``[N, C, 1, 1]``."""
    valid = s.r.new_ones(tokens.rows.shape) if tokens.padding is None else (~tokens.padding).to(s.r.dtype)
    return (valid / (x.q.shape[0] * x.q.shape[1])).repeat_interleave(x.q.shape[2], 0)[..., None, None]


BACKEND = Backend(
    name="blocked",
    summary="exact blocked algorithm in torch, hand-written backward",
    forward=forward,
    backward=backward,
    saved_like=saved_like,
    slow_on_gpu=True,
)
