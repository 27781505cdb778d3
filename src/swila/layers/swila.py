"""The switching linear attention layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.cache import Shape
from swila.layers.checks import check_counts, check_flags, check_numbers, check_weights
from swila.layers.context import CallContext
from swila.layers.decay import DecayGate
from swila.layers.joint import Projections
from swila.layers.load_balancing import RoutingDiagnostics, mutual_information_loss, routing_diagnostics
from swila.layers.options import RecurrentOptions, forwards
from swila.layers.projection import make_projection
from swila.layers.recurrence import run_recurrence
from swila.layers.recurrent import RecurrentMixer
from swila.ops import RoutingStats, SwitchingOutput, SwitchingState
from swila.ops.low_rank import Factors, switching_delta_rule_low_rank


class RoutingTrace(NamedTuple):
    """Routing of each token: responsibilities ``r`` (key side) and mix ``ρ`` (query side), ``[B, T, H, J, V]``."""

    key: Tensor
    query: Tensor


class SwiLA(RecurrentMixer):
    r"""A mixture of J online linear regressors per head; each output dimension selects among them at every token.

    From the input ``x_t``, per head, mixture ``j`` and output dimension ``d``::

        q, k, v  = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)),   q and k of unit length
        β_jd     = sigmoid(W_β x)                                             learning rates
        π^k, π^q = softmax_j(W_k' x), softmax_j(W_q' x)                       priors of writing and reading
        g^k, g^q = sigmoid(W_g x + b_g)                                       temporal gates (with temporal)
        α        = exp(-exp(A) softplus(W_α x + b_α))                         decay (with decay)

    The recurrence of :func:`swila.switching_delta_rule` follows, then an RMSNorm per head, an optional output gate, and
    the output projection.

    Args:
        hidden_size: Width of the input and output.
        num_heads: Number of heads, H.
        num_mixtures: Number of regressors per head, J. With one there is no router.
        temporal: Whether the priors persist from token to token (Temporal SwiLA).
        decay: Granularity of the decay in each mixture: None (no decay), ``"key"`` (per key dimension, as in the
            paper's language models), ``"value"`` (per output dimension) or ``"head"`` (per head).
        decay_order: ``"pre"`` (errors at the decayed state, as in the paper's models) or ``"post"``.
        normalize: Whether responsibilities are divided by their sum over the mixtures.
        router_projection: Projection to the logits of the two priors: ``"linear"``, ``"low-rank:RANK"`` or
            ``"swiglu:WIDTH"``.
        beta_projection: Projection to the learning rates; same values.
        decay_projection: Projection to the decay; same values.
        temporal_bias: Initial bias of the temporal gates. Below 0 the priors start sticky (-2 opens the gates by 0.12).
        router_noise: Whether to add ``ε softplus(W_noise x)`` to the logits of both priors in training.
        temporal_noise: Whether to add such noise to the logits of the temporal gates in training.
        use_output_gate: Whether to multiply the normalised output by ``silu(W x)``.
        balance_marginal: λ_marg of the load-balancing loss, the weight of even usage.
        balance_conditional: λ_cond of the load-balancing loss, the weight of commitment. Default: ``balance_marginal``.
        track_routing: Whether to keep the routing statistics of every call for :meth:`routing_diagnostics`. In training
            with load balancing they are always kept.
        shared: See :class:`~swila.layers.options.RecurrentOptions`; ``help(SwiLA)`` lists them under ``__init__``.
    """

    default_expand = 0.5
    steps_in_place = True

    @forwards(RecurrentOptions, to=RecurrentMixer)
    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        num_mixtures: int = 4,
        temporal: bool = False,
        decay: Literal["key", "value", "head"] | None = None,
        decay_order: Literal["pre", "post"] = "pre",
        normalize: bool = True,
        router_projection: str = "linear",
        beta_projection: str = "linear",
        decay_projection: str = "linear",
        temporal_bias: float = 0.0,
        router_noise: bool = False,
        temporal_noise: bool = False,
        use_output_gate: bool = False,
        balance_marginal: float = 0.0,
        balance_conditional: float | None = None,
        track_routing: bool = False,
        **shared: Unpack[RecurrentOptions],
    ) -> None:
        check_counts(num_mixtures=num_mixtures)
        check_flags(
            temporal=temporal,
            normalize=normalize,
            router_noise=router_noise,
            temporal_noise=temporal_noise,
            use_output_gate=use_output_gate,
            track_routing=track_routing,
        )
        check_numbers(temporal_bias=temporal_bias)
        check_weights(balance_marginal=balance_marginal)
        if balance_conditional is not None:
            check_weights(balance_conditional=balance_conditional)
        if decay not in (None, "key", "value", "head"):
            raise ValueError(f"decay must be None, 'key', 'value' or 'head', got {decay!r}")
        if decay_order not in ("pre", "post"):
            raise ValueError(f"decay_order must be 'pre' or 'post', got {decay_order!r}")
        for name, given, needs in (
            ("temporal_noise", temporal_noise, None if temporal else "temporal=True"),
            ("temporal_bias", temporal_bias, None if temporal else "temporal=True"),
            ("decay_projection", decay_projection != "linear", None if decay else "a decay"),
        ):
            if given and needs:
                raise ValueError(f"{name} has no effect without {needs}; leave it at its default")
        super().__init__(hidden_size, num_heads, output_gate="linear" if use_output_gate else None, **shared)
        H, J, K, V = num_heads, num_mixtures, self.head_k_dim, self.head_v_dim
        self.num_mixtures, self.temporal, self.decay_kind = num_mixtures, temporal, decay
        self.decay_order, self.normalize = decay_order, normalize
        self.router_noise, self.temporal_noise = router_noise, temporal_noise
        self.balance_marginal = balance_marginal
        self.balance_conditional = balance_marginal if balance_conditional is None else balance_conditional
        self.track_routing = track_routing
        self._change: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None

        self.b_proj = make_projection("beta_projection", beta_projection, hidden_size, H * J * V)
        if J > 1:
            self.key_router = make_projection("router_projection", router_projection, hidden_size, H * J * V)
            self.query_router = make_projection("router_projection", router_projection, hidden_size, H * J * V)
            if router_noise:
                self.key_noise = nn.Linear(hidden_size, H * J * V, bias=False)
                self.query_noise = nn.Linear(hidden_size, H * J * V, bias=False)
        if temporal:
            self.key_gate = nn.Linear(hidden_size, H * V, bias=False)
            self.query_gate = nn.Linear(hidden_size, H * V, bias=False)
            # not biases of the Linear modules, which models reinitialise to 0
            self.temporal_bias = float(temporal_bias)
            self.key_gate_bias = nn.Parameter(torch.empty(H * V))
            self.query_gate_bias = nn.Parameter(torch.empty(H * V))
            if temporal_noise:
                self.key_gate_noise = nn.Linear(hidden_size, H * V, bias=False)
                self.query_gate_noise = nn.Linear(hidden_size, H * V, bias=False)
        if decay is not None:
            width = {"key": K, "value": V, "head": 1}[decay]
            self.decay = DecayGate(hidden_size, H * J, width, decay_projection)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the biases of the temporal gates; submodules initialise themselves."""
        if self.temporal:
            nn.init.constant_(self.key_gate_bias, self.temporal_bias)
            nn.init.constant_(self.query_gate_bias, self.temporal_bias)

    def recur(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, context: CallContext
    ) -> tuple[Tensor, SwitchingState | None]:
        """See :meth:`RecurrentMixer.recur`."""
        balanced = False
        if self.training and (self.balance_marginal != 0 or self.balance_conditional != 0):
            balanced = True  # a branch, because torch.compile may treat the weights as symbols
        stats = balanced or self.track_routing
        project = self.projections(x, context)
        low_rank = self._low_rank(project, context)
        if low_rank is not None:
            operands = {"q": q, "k": k, "v": v}
            for side in ("key", "query"):
                operands |= self._gate(x, project, side)
            operands |= self._log_decay(x, project)
            out = self._run_low_rank(operands, low_rank, state, context, stats)
        else:
            out = self._run(self._operands(x, q, k, v, project), state, context, stats)
        if out.stats is not None:
            self.last_call.stats = RoutingStats(*(part.detach() for part in out.stats))
            if balanced:
                loss = mutual_information_loss(out.stats, self.balance_marginal, self.balance_conditional)
                self.last_call.keep_loss(loss)
        return out.output, out.state

    def readers(self) -> dict[str, nn.Module]:
        """See :meth:`QKVMixer.readers`."""
        names = ["b_proj"]
        names += ["key_router", "query_router"] if self.num_mixtures > 1 else []
        names += ["key_gate", "query_gate"] if self.temporal else []
        decay = {} if self.decay_kind is None else {"decay": self.decay.proj}
        return {**super().readers(), **{name: getattr(self, name) for name in names}, **decay}

    def routing_diagnostics(self) -> RoutingDiagnostics | None:
        """Return utilisation, routing entropy and dead mixtures of the last call that kept statistics, or None."""
        stats = self.last_call.stats
        return None if stats is None else routing_diagnostics(stats)

    @torch.no_grad()
    def trace(self, hidden_states: Tensor) -> RoutingTrace:
        """Return responsibilities and mix of every token of ``hidden_states [B, T, hidden_size]``; for inspection."""
        x, q, k, v, _, project = self._project(hidden_states, None, CallContext())
        operands = self._operands(x, q, k, v, project)
        key, query = [], []
        for b in range(hidden_states.shape[0]):
            state, found = None, []
            for t in range(hidden_states.shape[1]):
                token = {name: part[b : b + 1, t : t + 1] for name, part in operands.items()}
                out = self._run(token, state, CallContext(return_state=True), True)
                state = out.state
                assert out.stats is not None
                found.append(out.stats)
            key.append(torch.stack([stats.key_usage for stats in found]))
            query.append(torch.stack([stats.query_usage for stats in found]))
        return RoutingTrace(torch.stack(key), torch.stack(query))

    @contextmanager
    def changed(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Iterator[None]:
        """Within this context, apply ``change`` to the operands of the operation, to study a trained layer.

        Args:
            change: Function of the arguments of :func:`swila.switching_delta_rule` that have a time axis, by name.
        """
        self._change = change
        try:
            yield
        finally:
            self._change = None

    def memory_form(self) -> tuple[Shape, ...]:
        """See :meth:`RecurrentMixer.memory_form`; with temporal priors it includes the last r and ρ."""
        H, J, K, V = self.num_heads, self.num_mixtures, self.head_k_dim, self.head_v_dim
        last = (H, J, V) if self.temporal else None
        return (H, J, V, K), last, last

    def state_size(self, length: int = 1) -> int:
        """Return ``H J K V``; see :meth:`SequenceMixer.state_size`."""
        return super().state_size() * self.num_mixtures

    def _run(self, operands: dict[str, Tensor], state: Any, context: CallContext, stats: bool) -> SwitchingOutput:
        options = {"decay_order": self.decay_order, "normalize": self.normalize, "backend": self.backend}
        return run_recurrence(operands, state, context, stats, **options)

    def _run_low_rank(
        self,
        operands: dict[str, Tensor],
        factors: tuple[Factors, Factors],
        state: Any,
        context: CallContext,
        stats: bool,
    ) -> SwitchingOutput:
        low, up = factors
        return switching_delta_rule_low_rank(
            **operands,
            low=low,
            up=up,
            decay_order=self.decay_order,
            normalize=self.normalize,
            initial_state=None if state is None else SwitchingState(*state),
            cu_seqlens=context.cu_seqlens,
            return_state=context.return_state,
            routing_stats=stats,
            backend=self.backend,
        )

    def _low_rank(self, project: Projections, context: CallContext) -> tuple[Factors, Factors] | None:
        """Return both factors of learning rates and logits, if the operation can take them instead of the whole.

        It then keeps less for the backward. It cannot with noise on the logits, or if the operands are changed.
        """
        if not torch.is_grad_enabled() or context.alive is not None or project.x.shape[1] == 1:
            return None
        if self.num_mixtures == 1 or (self.training and self.router_noise) or self._change is not None:
            return None
        beta, key, query = project.up("b_proj"), project.up("key_router"), project.up("query_router")
        if beta is None or key is None or query is None:
            return None
        low = Factors(project.low("b_proj"), project.low("key_router"), project.low("query_router"))
        return low, Factors(beta, key, query)

    def _operands(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, project: Projections | None = None
    ) -> dict[str, Tensor]:
        H, J, V = self.num_heads, self.num_mixtures, self.head_v_dim
        project = Projections(x, self.readers()) if project is None else project
        beta = project.full("b_proj", sigmoid=True).unflatten(-1, (H, J, V))
        operands: dict[str, Tensor] = {"q": q, "k": k, "v": v, "beta": beta}
        for side in ("key", "query"):  # in this order noise is drawn: results of finished runs depend on it
            if J > 1:
                noise = getattr(self, f"{side}_noise") if self.router_noise else None
                logits = self._noisy(project.full(f"{side}_router"), noise, x).unflatten(-1, (H, J, V))
            else:
                logits = torch.zeros_like(beta)
            operands[f"{side}_logits"] = logits
            operands |= self._gate(x, project, side)
        operands |= self._log_decay(x, project)
        return operands if self._change is None else self._change(operands)

    def _gate(self, x: Tensor, project: Projections, side: str) -> dict[str, Tensor]:
        """Return the temporal gate of the keys or queries, by the operation's name for it; empty if there is none."""
        if not self.temporal:
            return {}
        noise = getattr(self, f"{side}_gate_noise") if self.temporal_noise else None
        logits = project(f"{side}_gate")
        logits = self._noisy(logits + getattr(self, f"{side}_gate_bias").to(logits.dtype), noise, x)
        return {f"{side}_gate": logits.sigmoid().unflatten(-1, (self.num_heads, self.head_v_dim))}

    def _log_decay(self, x: Tensor, project: Projections) -> dict[str, Tensor]:
        """Return the decay, by the operation's name for it; empty if there is none."""
        if self.decay_kind is None:
            return {}
        log_decay = self.decay(x, project("decay")).unflatten(-2, (self.num_heads, self.num_mixtures))
        return {"log_decay": log_decay.unsqueeze(-1 if self.decay_kind == "value" else -2)}

    def extra_repr(self) -> str:
        """Return the sizes and the variant, for printing."""
        sizes = (
            f"num_heads={self.num_heads}, num_mixtures={self.num_mixtures}, K={self.head_k_dim}, V={self.head_v_dim}"
        )
        return f"{sizes}, temporal={self.temporal}, decay={self.decay_kind!r}"

    def _noisy(self, logits: Tensor, noise: nn.Module | None, x: Tensor) -> Tensor:
        if noise is None or not self.training:
            return logits
        return logits + torch.randn_like(logits) * F.softplus(noise(x))
