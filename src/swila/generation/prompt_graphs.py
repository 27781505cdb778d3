"""Passes over short prompts, captured in CUDA graphs.

A pass over a few thousand tokens takes the host longer to launch than the device to compute. A pass of a form that was
seen before is therefore captured in a graph, and replayed from then on. Rows are packed one after another. Their number
of tokens is rounded up, and the tokens that are left over form one more sequence, so that few graphs serve all lengths.
A pass is computed in this form from the first one on: the results of a replay are those of the calls before it.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from swila.generation.decoder import addresses, rounded_up
from swila.layers import Cache
from swila.layers.cache import LayerState, map_tensors, tensors
from swila.layers.capture import capturable
from swila.ops.fused.choice import serves
from swila.ops.fused.modules import is_plain, is_tensor

MOST_TOKENS = 8192  # of a pass; larger ones keep the device busy
MOST_ROWS = 8  # a graph has memory for the states of its rows
MOST_GRAPHS = 16  # of a model; the one that was not used for longest is freed
ROUNDING = (64, 4)  # of the number of tokens: see rounded_up
PLAIN = ("swila.", "torch.nn.modules.")  # where the classes are whose modules only compute

_graphs: WeakKeyDictionary[Any, PromptGraphs] = WeakKeyDictionary()


class PassForm(NamedTuple):
    """What passes must have in common to be replays of one graph.

    Attributes:
        rows: Number of rows.
        capacity: Number of tokens of all rows, rounded up.
        spare: Whether tokens are left over, which form one more sequence.
        dtypes: Dtypes of the state that the pass continues, or None for none.
    """

    rows: int
    capacity: int
    spare: bool
    dtypes: tuple[torch.dtype, ...] | None

    @property
    def sequences(self) -> int:
        """Number of packed sequences."""
        return self.rows + self.spare


class PromptPass:
    """Buffers for passes of one form, and from the second one on the graph that computes them."""

    @torch.inference_mode(False)  # as the buffers of a decoder
    def __init__(self, model: Any, form: PassForm, past: Cache | None) -> None:
        self._model = weakref.ref(model)  # the model keeps the graphs, not vice versa
        self.form, self.device = form, model.device
        self.ids = torch.zeros(1, form.capacity, dtype=torch.long, device=self.device)
        self.bounds = torch.zeros(form.sequences + 1, dtype=torch.long, device=self.device)
        self.before: list[LayerState] | None = None
        if past is not None:
            self.before = [map_tensors(self._room, past[i]) for i in range(len(past))]
        self.uses = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.hidden: Tensor | None = None
        self.after: list[LayerState] = []

    def _room(self, t: Tensor) -> Tensor:
        return torch.zeros(self.form.sequences, *t.shape[1:], dtype=t.dtype, device=self.device)

    def load(self, ids: Sequence[Tensor], past: Cache | None) -> None:
        """Copy the tokens of each row into the buffers, and the state before them."""
        lengths = [len(row) for row in ids]
        self.ids[0, : sum(lengths)].copy_(torch.cat(list(ids)))
        ends = [*itertools.accumulate(lengths), *[self.form.capacity] * self.form.spare]
        self.bounds[1:].copy_(torch.tensor(ends, dtype=torch.long, device="cpu"), non_blocking=True)
        if self.before is not None:
            assert past is not None
            for i, mine in enumerate(self.before):
                map_tensors(lambda to, given: to[: self.form.rows].copy_(given), mine, past[i])

    def run(self) -> None:
        """Compute the pass that was loaded."""
        self.uses += 1
        if self.graph is not None:
            self.graph.replay()
        else:
            self._compute()

    def capture(self, pool: Any, stream: torch.cuda.Stream) -> None:
        """Capture the computation in a graph; it must have run once, so that kernels are compiled.

        Args:
            pool: Memory pool of the graphs of a model: their passes take turns, and results are copied.
            stream: Stream that serves captures alone, on the model's device.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.device):
            here = torch.cuda.stream(torch.cuda.current_stream())  # to which a capture that fails must return
            with here, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._compute()
        self.graph = graph

    @property
    def _inner(self) -> Any:
        model: Any = self._model()
        return model.model

    def _compute(self) -> None:
        model, cache = self._inner, Cache()
        for i, state in enumerate(self.before or ()):
            cache.update(**state, layer_idx=i)
        out = model(self.ids, past_key_values=cache, use_cache=True, return_dict=True, cu_seqlens=self.bounds)
        last = self.bounds[1 : self.form.rows + 1] - 1
        self.hidden = out.last_hidden_state[0].index_select(0, last)
        self.after = [cache[i] for i in range(len(model.layers))]

    def forget(self) -> None:
        """Free the results, unless a graph writes them."""
        if self.graph is None:
            self.hidden, self.after = None, []

    def results(self, cache: Cache, width: int) -> Tensor:
        """Write a copy of the states after ``width`` more tokens into a cache; return a copy of the hidden states."""
        rows = self.form.rows
        assert self.hidden is not None
        for i, (layer, state) in enumerate(zip(self._inner.layers, self.after, strict=True)):
            cache.update(**map_tensors(lambda t: t[:rows].clone(), state), layer_idx=i, offset=width)
            cache.claim(layer.mixer, i)
        return self.hidden.clone()


class PromptGraphs:
    """The passes of a model that were seen, with their graphs."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self.weights = addresses(model)
        self.passes: OrderedDict[PassForm, PromptPass] = OrderedDict()
        self.on_gpu = self.captures = model.device.type == "cuda"
        self.pool: Any = None
        self.stream: Any = None
        self.read_last: torch.cuda.Event | None = None

    def fits(self, counts: Sequence[int]) -> bool:
        """Return whether a pass over so many tokens of each row is small enough; each row must have one."""
        return len(counts) <= MOST_ROWS and sum(counts) <= MOST_TOKENS and min(counts) > 0

    def read(self, ids: Sequence[Tensor], cache: Cache) -> Tensor:
        """Read the tokens of each row, update a cache, and return the last hidden states ``[rows, hidden_size]``.

        Args:
            ids: Token ids of each row, ``[T_i]``; see :meth:`fits`.
            cache: Cache of the rows, empty in the first pass. It grows by the longest ``T_i``.
        """
        total = sum(len(row) for row in ids)
        model: Any = self._model()
        past = cache if len(cache) else None
        capacity = rounded_up(total, *ROUNDING)
        dtypes = None if past is None else tuple(t.dtype for i in range(len(past)) for t in tensors(past[i]))
        form = PassForm(len(ids), capacity, capacity > total, dtypes)
        known = self.passes.pop(form, None)
        one = PromptPass(model, form, past) if known is None else known
        if self.read_last is not None:
            torch.cuda.current_stream(model.device).wait_event(self.read_last)  # a caller may have streams of its own
        one.load(ids, past)
        if self.captures and one.uses == 1:
            self._capture(one)
        one.run()
        hidden = one.results(cache, max(len(row) for row in ids))
        one.forget()
        if self.on_gpu:
            self.read_last = torch.cuda.current_stream(model.device).record_event(self.read_last)
        self.passes[form] = one
        if len(self.passes) > MOST_GRAPHS:
            self.passes.popitem(last=False)
        return hidden

    def _capture(self, one: PromptPass) -> None:
        if self.on_gpu and all(other.graph is None for other in self.passes.values()):
            self.pool = torch.cuda.graph_pool_handle()  # a pool is gone with its last graph
            self.stream = torch.cuda.Stream(one.device)
        try:
            one.capture(self.pool, self.stream)
        except RuntimeError as error:
            self.captures = False
            warnings.warn(f"prompts are read without CUDA graphs, because a capture failed: {error}", stacklevel=2)


def prompt_graphs(model: Any) -> PromptGraphs | None:
    """Return the graphs of a model in evaluation, or None where its passes cannot be captured.

    They can on a GPU where fused kernels serve the model, without autocast, if :func:`is_capturable`.
    """
    if not _served(model) or not is_capturable(model):
        return None
    known = _graphs.get(model)
    if known is None or known.weights != addresses(model):
        known = _graphs[model] = PromptGraphs(model)
    return known


def release_graphs(model: Any) -> None:
    """Free the graphs of a model."""
    _graphs.pop(model, None)


def _served(model: Any) -> bool:
    kind = model.device.type
    return kind == "cuda" and not torch.is_autocast_enabled(kind) and serves(model.model.norm.weight)


def is_capturable(model: Any) -> bool:
    """Return whether a pass over packed sequences does no more than launch kernels, so that it can be replayed.

    All modules must be those of this package and of torch, without hooks and not compiled, on one device.
    """
    inner, device = model.model, model.device
    for module in inner.modules():
        kind = type(module)
        if not kind.__module__.startswith(PLAIN) or not is_plain(module, kind) or module._compiled_call_impl:
            return False
    if not all(is_tensor(p) and p.device == device for p in inner.parameters()):
        return False
    return all(capturable(layer.mixer, device, inner.norm.weight.dtype) for layer in inner.layers)
