"""The decode loop: one replay of a captured CUDA graph per token, in place, without host synchronisation.

A step samples a token from the last hidden states and processes it, which updates the states and the hidden states in
place. Everything is on the device, including the output position and the mask of finished rows, so that the whole step
is one graph. The state of a finished row stays bit-identical. On a CPU the same loop runs without a graph.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from swila.generation.capturing import capturing
from swila.generation.sampling import Sampling
from swila.generation.state import GenerationState
from swila.layers import Cache
from swila.layers.cache import LayerState, map_tensors
from swila.layers.decoding import plain
from swila.ops.fused.choice import serves
from swila.ops.fused.next_token import Loop, keep_hidden, pick_token
from swila.ops.fused.skinny import MOST_ROWS, skinny

COPY_INTERVAL = 16  # steps between copies of the tokens to the host, without a streamer


class DecoderSpec(NamedTuple):
    """Sizes and settings that the buffers and graphs of a :class:`Decoder` are made for.

    Attributes:
        batch_size: Number of rows, B.
        capacity: Number of tokens that attention layers have room for; 0 without such layers.
        room: Number of tokens that can be generated.
        sampling: Sampling settings.
        stop: Tokens that end a row.
        pad: Token of finished rows.
        compiled: Whether blocks are compiled with ``torch.compile``.
        dtypes: Dtypes of the state and of autocast.
        fused: Whether fused kernels serve the state.
    """

    batch_size: int
    capacity: int
    room: int
    sampling: Sampling
    stop: tuple[int, ...]
    pad: int
    compiled: bool
    dtypes: tuple[torch.dtype | None, ...]
    fused: bool = False


class Decoder:
    """Reusable buffers, and on a GPU graphs, for one model and spec."""

    @torch.inference_mode(False)  # inference tensors could not be updated outside of inference mode
    def __init__(self, model: Any, spec: DecoderSpec) -> None:
        self._model = weakref.ref(model)  # the model keeps the decoder, not vice versa
        self.spec, self.device = spec, model.device
        self.attends = spec.capacity > 0
        self.weights = addresses(model)
        self.states: list[LayerState] = []  # allocated by the first load, like self.hidden
        self.tokens = torch.full((spec.room, spec.batch_size), spec.pad, device=self.device)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)  # step
        self.done = torch.zeros(spec.batch_size, dtype=torch.bool, device=self.device)
        self.alive = torch.zeros_like(self.done)  # of the step that runs
        self.broken = torch.zeros(
            spec.batch_size, dtype=torch.long, device=self.device
        )  # first step without finite logits
        self.stop = torch.tensor(spec.stop, dtype=torch.long, device=self.device)
        self.generator = torch.Generator(self.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        # of captures: torch's own is on the device of the process's first capture
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @property
    def model(self) -> Any:
        """The model."""
        return self._model()

    def fits(self, spec: DecoderSpec) -> bool:
        """Return whether the buffers serve another spec and the weights have not moved."""
        same = self.spec._replace(capacity=0, room=0) == spec._replace(capacity=0, room=0)
        large_enough = self.spec.capacity >= spec.capacity and self.spec.room >= spec.room
        return same and large_enough and self.weights == addresses(self.model)

    def load(self, state: GenerationState, seed: int) -> None:
        """Copy a state into the buffers and set the seed."""
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
        """Return a copy of the current state; ``tokens`` is the number of tokens processed in each row."""
        cache = Cache()
        for i, (layer, state) in enumerate(zip(self.model.model.layers, self.states, strict=True)):
            cache.update(**layer.mixer.cached_state(state), layer_idx=i, offset=max(tokens))
            cache.claim(layer.mixer, i)
        return GenerationState(cache, self.hidden.clone(), self.model.config.layer_mixers, tokens, self.state_weights)

    @torch.no_grad()
    def run(self, steps: int, watch: Callable[[Tensor], None] | None = None) -> None:
        """Generate up to ``steps`` tokens; stop early when every row is finished.

        Raises ValueError, with the step, if the logits of a row are NaN or infinite. The copies of the tokens to the
        host tell.

        Args:
            steps: Maximum number of tokens.
            watch: Called with the tokens ``[B]`` of every step, on the CPU, while the device runs a step ahead.
        """
        on_gpu = self.device.type == "cuda"
        stride = COPY_INTERVAL if on_gpu and watch is None else 1
        copies = [HostCopy(stride, self.spec.batch_size, self.device) for _ in range(2)]
        pending: deque[HostCopy] = deque()
        all_done = False
        for n in range(steps):
            self._step(self.longest + n)
            if (n + 1) % stride == 0 or n + 1 == steps:
                copy = copies[n // stride % 2]
                copy.start(self.tokens[n // stride * stride : n + 1], self.done, self.broken)
                pending.append(copy)
            if len(pending) > on_gpu:  # keep a GPU busy while the host reads a copy
                all_done = pending.popleft().finish(watch)
            if all_done:
                return
        while pending:
            pending.popleft().finish(watch)

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
        if self._fuses():
            self._decode_fused(bound)
            return
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

    def _fuses(self) -> bool:
        """Return whether the steps between the blocks are fused kernels as well: those of greedy decoding."""
        model, hidden = self.model, self.hidden
        if not self.spec.sampling.greedy or not serves(hidden) or len(hidden) > MOST_ROWS:
            return False
        if torch.is_autocast_enabled(self.device.type) or getattr(model.lm_head, "bias", None) is not None:
            return False
        parts = ((model.lm_head, nn.Linear), (model.model.norm, nn.RMSNorm), (model.model.embed_tokens, nn.Embedding))
        return all(plain(part, hidden.dtype, kind) for part, kind in parts)

    def _decode_fused(self, bound: int) -> None:
        model, norm = self.model.model, self.model.model.norm
        loop = Loop(self.at, self.done, self.broken, self.tokens, self.alive)
        logits = skinny(self.hidden, [self.model.lm_head.weight])
        x = pick_token(logits, model.embed_tokens.weight, self.stop, loop, self.spec.pad)
        x = model.step_blocks(x, self._states_up_to(bound), self.alive, self.spec.compiled)
        eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        keep_hidden(x, norm.weight, eps, self.hidden, loop)

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
        """Capture a step. Warm-up and capture run with every row finished, so that states do not change."""
        kept = self.done.clone(), self.at.clone(), self.tokens.clone(), self.generator.get_state()
        self.done.fill_(True)
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # cached casts of weights would be freed before a replay
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
            with capturing(graph, self.stream):
                self._decode(bound)
        finally:
            torch.set_autocast_cache_enabled(cached)
        self.graphs[bound] = graph
        self.done.copy_(kept[0])
        self.at.copy_(kept[1])
        self.tokens.copy_(kept[2])
        self.generator.set_state(kept[3])


class HostCopy:
    """A copy of the results of the last steps on the host, made while the device continues."""

    def __init__(self, steps: int, batch_size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.event = torch.cuda.Event() if pinned else None
        self.tokens = torch.zeros(steps, batch_size, dtype=torch.long, device="cpu", pin_memory=pinned)
        self.done = torch.zeros(batch_size, dtype=torch.bool, device="cpu", pin_memory=pinned)
        self.broken = torch.zeros(batch_size, dtype=torch.long, device="cpu", pin_memory=pinned)

    def start(self, tokens: Tensor, done: Tensor, broken: Tensor) -> None:
        """Start to copy the tokens ``[steps, B]``, the finished rows, and the rows with non-finite logits."""
        self.steps = len(tokens)
        self.tokens[: self.steps].copy_(tokens, non_blocking=True)
        self.done.copy_(done, non_blocking=True)
        self.broken.copy_(broken, non_blocking=True)
        if self.event is not None:
            self.event.record()

    def finish(self, watch: Callable[[Tensor], None] | None) -> bool:
        """Wait for the copy, call ``watch`` with the tokens of each step, and return whether every row is finished."""
        if self.event is not None:
            self.event.synchronize()
        if bool(self.broken.any()):
            row = int(self.broken.nonzero()[0])
            raise ValueError(
                f"logits must be finite, got NaN or infinity for row {row} at step {int(self.broken[row])}: the "
                "weights or the state contain such values, or the model overflows in its dtype"
            )
        if watch is not None:
            for tokens in self.tokens[: self.steps]:
                watch(tokens.clone())
        return bool(self.done.all())


def rounded_up(length: int, least: int = 256, part: int = 8) -> int:
    """Round a number of tokens up, so that few graphs cover all lengths.

    Args:
        length: Number of tokens.
        least: The result is a multiple of it, a power of two.
        part: The result is less than ``least`` or ``length / part`` larger; a power of two.
    """
    step = max(least, (1 << length.bit_length()) // (2 * part))
    return -(-length // step) * step


def addresses(model: Any) -> tuple[tuple[int, torch.dtype], ...]:
    """Return the addresses and dtypes of the weights, which graphs read from."""
    return tuple((p.data_ptr(), p.dtype) for p in model.parameters())
