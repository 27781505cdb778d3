"""Passes over short prompts, captured in CUDA graphs.

A pass over a few thousand tokens takes the host longer to launch than the device to compute. The second pass of a form
is therefore captured in a graph after it was computed, and later ones are replays. Rows are packed one after another.
Their number of tokens is rounded up, and the tokens that are left over form one more sequence, so that few graphs serve
all lengths. A pass is computed in this form from the first one on: the results of a replay are those of the calls
before it.
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

from swila.generation.capturing import capturing, cause_of, own_stream
from swila.generation.decoder import addresses, rounded_up
from swila.layers import Cache
from swila.layers.cache import LayerState, map_tensors, tensors
from swila.layers.capture import capturable
from swila.ops.fused.choice import serves
from swila.ops.fused.modules import is_plain, is_tensor

MOST_TOKENS = 16384  # of a pass; larger ones keep the device busy
MOST_ROWS = 8  # a graph has memory for the states of its rows
MOST_BYTES = 2**30  # of states in the buffers of a model's graphs; those that were not used for longest are freed
MOST_FORMS = 256  # of a model that are remembered
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
    """A pass of one form: the number of its uses, and once it is captured the graph and its buffers."""

    def __init__(self, model: Any, form: PassForm) -> None:
        self._model = weakref.ref(model)  # the model keeps the graphs, not vice versa
        self.form, self.device = form, model.device
        self.uses = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self._empty()

    def _empty(self) -> None:
        self.ids: Tensor | None = None
        self.bounds: Tensor | None = None
        self.before: list[LayerState] = []
        self.hidden: Tensor | None = None
        self.after: list[LayerState] = []

    @torch.inference_mode(False)  # as the buffers of a decoder
    def _allocate(self, past: Cache | None) -> None:
        self.ids = torch.zeros(1, self.form.capacity, dtype=torch.long, device=self.device)
        self.bounds = torch.zeros(self.form.sequences + 1, dtype=torch.long, device=self.device)
        if past is not None:
            self.before = [map_tensors(self._room, past[i]) for i in range(len(past))]

    def _room(self, t: Tensor) -> Tensor:
        return torch.zeros(self.form.sequences, *t.shape[1:], dtype=t.dtype, device=self.device)

    @property
    def bytes(self) -> int:
        """Number of bytes of the states before and after the pass."""
        held = [t for state in (*self.before, *self.after) for t in tensors(state)]
        return sum(t.numel() * t.element_size() for t in held)

    def load(self, ids: Sequence[Tensor], past: Cache | None) -> None:
        """Copy the tokens of each row into the buffers, and the state before them."""
        if self.ids is None:
            self._allocate(past)
        assert self.ids is not None
        assert self.bounds is not None
        lengths = [len(row) for row in ids]
        self.ids[0, : sum(lengths)].copy_(torch.cat(list(ids)))
        ends = [*itertools.accumulate(lengths), *[self.form.capacity] * self.form.spare]
        self.bounds[1:].copy_(torch.tensor(ends, dtype=torch.long, device="cpu"), non_blocking=True)
        if past is not None:
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
        """Capture the computation in a graph; this thread must have run it, so that all it needs is there.

        Args:
            pool: Memory pool of the graphs of a model: their passes take turns, and results are copied.
            stream: Stream that serves captures alone, on the model's device.
        """
        self.hidden, self.after = None, []
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.device(self.device)
        with torch.inference_mode(False), torch.no_grad(), here, capturing(graph, stream, pool):
            self._compute()
        self.graph = graph

    @property
    def _inner(self) -> Any:
        model: Any = self._model()
        return model.model

    def _compute(self) -> None:
        model, cache = self._inner, Cache()
        assert self.bounds is not None
        for i, state in enumerate(self.before):
            cache.update(**state, layer_idx=i)
        out = model(self.ids, past_key_values=cache, use_cache=True, return_dict=True, cu_seqlens=self.bounds)
        last = self.bounds[1 : self.form.rows + 1] - 1
        self.hidden = out.last_hidden_state[0].index_select(0, last)
        self.after = [cache[i] for i in range(len(model.layers))]

    def forget(self) -> None:
        """Free the buffers, unless they are those of a graph."""
        if self.graph is None:
            self._empty()

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
        one = PromptPass(model, form) if known is None else known
        if self.read_last is not None:
            torch.cuda.current_stream(model.device).wait_event(self.read_last)  # a caller may have streams of its own
        one.load(ids, past)
        one.run()
        hidden = one.results(cache, max(len(row) for row in ids))
        if self.on_gpu:
            self.read_last = torch.cuda.current_stream(model.device).record_event(self.read_last)
        captures = self.captures and one.uses == 2
        if captures:
            self._capture(one)
        one.forget()
        self.passes[form] = one
        if captures or known is None:
            self._limit()
        return hidden

    def _limit(self) -> None:
        """Free what was not used for longest."""
        while len(self.passes) > MOST_FORMS:
            self.wait()
            self.passes.popitem(last=False)
        held = sum(one.bytes for one in self.passes.values())
        for form, one in list(self.passes.items())[:-1]:
            if held <= MOST_BYTES:
                break
            if one.graph is not None:
                self.wait()
                held -= one.bytes
                del self.passes[form]

    def wait(self) -> None:
        """Wait for the last pass, on whatever stream, before memory is freed."""
        if self.read_last is not None:
            self.read_last.synchronize()

    def _capture(self, one: PromptPass) -> None:
        try:
            if self.on_gpu and all(other.graph is None for other in self.passes.values()):
                self.pool = torch.cuda.graph_pool_handle()  # a pool is gone with its last graph
                self.stream = own_stream(one.device)
            one.capture(self.pool, self.stream)
        except RuntimeError as error:
            self.captures = False
            reason = cause_of(error)
            warnings.warn(f"prompts are read without CUDA graphs, because a capture failed: {reason}", stacklevel=2)


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
    known = _graphs.pop(model, None)
    if known is not None:
        known.wait()


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
