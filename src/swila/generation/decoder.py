"""The decoding loop: one captured CUDA graph per token, everything in place, nothing waits for the device.

A step samples a token from the last hidden states, and reads it: state and hidden states are written over the old ones.
All of it is on the device, the place of the token in the output and who is done included, so that a graph of the whole
step can be replayed as fast as the host can ask for it. A row that is done keeps its state bit for bit. The same loop,
without a graph, runs on a CPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.generation.sampling import Sampling
from swila.generation.state import GenerationState
from swila.layers import Cache
from swila.layers.cache import LayerState, map_tensors

UNSEEN = 16  # steps between looks at what came out, when nobody watches


class DecoderSpec(NamedTuple):
    """What the buffers and graphs of a :class:`Decoder` are made for.

    Attributes:
        batch_size: Number of rows, B.
        capacity: tokens there is room for, where layers keep them all; else 0.
        room: tokens that can be generated.
        sampling: how tokens are chosen.
        stop: tokens that end a row.
        pad: what a row that is done has instead of tokens.
        compiled: whether blocks go through ``torch.compile``.
        dtypes: of the state, and of autocast.
    """

    batch_size: int
    capacity: int
    room: int
    sampling: Sampling
    stop: tuple[int, ...]
    pad: int
    compiled: bool
    dtypes: tuple[torch.dtype | None, ...]


class Decoder:
    """Buffers, and on a GPU graphs, for one model and spec; to be used again and again."""

    @torch.inference_mode(False)  # else buffers could not be written to outside of it
    def __init__(self, model: Any, spec: DecoderSpec) -> None:
        self._model = weakref.ref(model)  # which keeps the decoder, not the other way round
        self.spec, self.device = spec, model.device
        self.attends = spec.capacity > 0
        self.weights = addresses(model)
        self.states: list[LayerState] = []  # made by the first load, as is what is hidden
        self.tokens = torch.full((spec.room, spec.batch_size), spec.pad, device=self.device)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)
        self.done = torch.zeros(spec.batch_size, dtype=torch.bool, device=self.device)
        self.broken = torch.zeros(
            spec.batch_size, dtype=torch.long, device=self.device
        )  # first step without finite logits
        self.stop = torch.tensor(spec.stop, dtype=torch.long, device=self.device)
        self.generator = torch.Generator(self.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def model(self) -> Any:
        """The model."""
        return self._model()

    def fits(self, spec: DecoderSpec) -> bool:
        """Whether this decoder can do the work of another spec, and the weights are where they were."""
        same = self.spec._replace(capacity=0, room=0) == spec._replace(capacity=0, room=0)
        large_enough = self.spec.capacity >= spec.capacity and self.spec.room >= spec.room
        return same and large_enough and self.weights == addresses(self.model)

    def load(self, state: GenerationState, seed: int) -> None:
        """Take a state and a seed to begin with."""
        if not self.states:
            with torch.inference_mode(False):
                self.states = self.model.model.decoding_states(state.cache, self.spec.capacity)
                self.hidden = state.hidden.clone()
        else:
            for i, (layer, mine) in enumerate(zip(self.model.model.layers, self.states, strict=True)):
                given = layer.mixer.decoding_state(state.cache[i], self.spec.capacity)  # one layer's at a time
                map_tensors(lambda old, new: old.copy_(new), mine, given)
            self.hidden.copy_(state.hidden)
        self.tokens.fill_(self.spec.pad)
        self.at.zero_()
        self.done.zero_()
        self.broken.zero_()
        self.generator.manual_seed(seed)
        self.longest, self.state_weights = max(state.tokens), state.weights

    def state(self, tokens: list[int]) -> GenerationState:
        """A copy of where the rows are now, having read ``tokens`` each."""
        cache = Cache()
        for i, (layer, state) in enumerate(zip(self.model.model.layers, self.states, strict=True)):
            cache.update(**layer.mixer.cached_state(state), layer_idx=i, offset=max(tokens))
            cache.claim(layer.mixer, i)
        return GenerationState(cache, self.hidden.clone(), self.model.config.layer_mixers, tokens, self.state_weights)

    @torch.no_grad()
    def run(self, steps: int, watch: Callable[[Tensor], None] | None = None) -> None:
        """Generate up to ``steps`` tokens, fewer if every row is done.

        Raises ValueError, naming the step, if the logits of a row are NaN or infinite. The host finds that in the same
        copies as the tokens.

        Args:
            steps: tokens.
            watch: called with the tokens ``[B]`` of every step, on the CPU, while the device is a step ahead.
        """
        on_gpu = self.device.type == "cuda"
        stride = UNSEEN if on_gpu and watch is None else 1
        looks = [Look(stride, self.spec.batch_size, self.device) for _ in range(2)]
        pending: deque[Look] = deque()
        everyone_done = False
        for n in range(steps):
            self._step(self.longest + n)
            if (n + 1) % stride == 0 or n + 1 == steps:
                look = looks[n // stride % 2]
                look.take(self.tokens[n // stride * stride : n + 1], self.done, self.broken)
                pending.append(look)
            if len(pending) > on_gpu:  # a GPU is kept busy while the host looks
                everyone_done = pending.popleft().show(watch)
            if everyone_done:
                return
        while pending:
            pending.popleft().show(watch)

    def _step(self, length: int) -> None:
        bound = min(rounded_up(length + 1), self.spec.capacity)
        if self.device.type != "cuda":
            self._decode(bound)
            return
        with torch.cuda.device(self.device):
            if bound not in self.graphs:
                self._capture(bound)
            self.graphs[bound].replay()

    def _decode(self, bound: int) -> None:
        logits = self.model.lm_head(self.hidden).float()
        alive = ~self.done
        broken = ~logits.amax(-1).isfinite() & alive & (self.broken == 0)
        self.broken += broken * (self.at + 1)
        token = self.spec.sampling.draw(logits, self.generator).where(alive, self.spec.pad)
        self.tokens.index_copy_(0, self.at, token.unsqueeze(0))
        hidden = self.model.model.step(token.where(alive, 0), self._states_up_to(bound), alive, self.spec.compiled)
        self.hidden.copy_(hidden.where(alive.unsqueeze(1), self.hidden))
        self.done |= (token.unsqueeze(1) == self.stop).any(1)
        self.at += 1

    def _states_up_to(self, bound: int) -> list[LayerState]:
        if not self.attends:
            return self.states
        states = []
        for state in self.states:
            if state.get("attn_state") is not None:
                *kept, length = state["attn_state"]
                state = {**state, "attn_state": (*(t[:, :bound] for t in kept), length)}
            states.append(state)
        return states

    def _capture(self, bound: int) -> None:
        """Record a step. What warms up and is recorded runs with every row done, which leaves all states alone."""
        kept = self.done.clone(), self.at.clone(), self.tokens.clone(), self.generator.get_state()
        self.done.fill_(True)
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # weights in its cache would be gone when the graph is replayed
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.at.zero_()
                    self._decode(bound)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph):
                self._decode(bound)
        finally:
            torch.set_autocast_cache_enabled(cached)
        self.graphs[bound] = graph
        self.done.copy_(kept[0])
        self.at.copy_(kept[1])
        self.tokens.copy_(kept[2])
        self.generator.set_state(kept[3])


class Look:
    """A copy on the host of what the last steps gave, made while the device goes on."""

    def __init__(self, steps: int, batch_size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.event = torch.cuda.Event() if pinned else None
        self.tokens = torch.zeros(steps, batch_size, dtype=torch.long, device="cpu", pin_memory=pinned)
        self.done = torch.zeros(batch_size, dtype=torch.bool, device="cpu", pin_memory=pinned)
        self.broken = torch.zeros(batch_size, dtype=torch.long, device="cpu", pin_memory=pinned)

    def take(self, tokens: Tensor, done: Tensor, broken: Tensor) -> None:
        """Ask for a copy of the tokens ``[steps, rows]``, of who is done, and of who has no finite logits."""
        self.steps = len(tokens)
        self.tokens[: self.steps].copy_(tokens, non_blocking=True)
        self.done.copy_(done, non_blocking=True)
        self.broken.copy_(broken, non_blocking=True)
        if self.event is not None:
            self.event.record()

    def show(self, watch: Callable[[Tensor], None] | None) -> bool:
        """Wait for the copy, show the tokens of each step to who watches, and say whether every row is done."""
        if self.event is not None:
            self.event.synchronize()
        if bool(self.broken.any()):
            row = int(self.broken.nonzero()[0])
            raise ValueError(
                f"logits must be finite, got NaN or infinity for row {row} at step {int(self.broken[row])}: the "
                "weights or the state hold such values, or the model overflows in its dtype"
            )
        if watch is not None:
            for tokens in self.tokens[: self.steps]:
                watch(tokens.clone())
        return bool(self.done.all())


def rounded_up(length: int) -> int:
    """How many tokens of keys and values a graph looks at, for ``length`` of them: up to an eighth more."""
    step = max(256, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step


def addresses(model: Any) -> tuple[int, ...]:
    """Where the weights lie: a graph reads them from there."""
    return tuple(p.data_ptr() for p in model.parameters())
