"""Isolation of runs that take turns in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from swila.tasks.streams import stream
from swila.training.precision import matmul_precision


class Isolation:
    """Random number generators of a run's own, and on a GPU a CUDA stream and a matrix product precision of its own.

    Inside :meth:`entered`, torch's global generators, its current stream and its precision are those of the run;
    outside they are the caller's. Work that several runs launch on a GPU overlaps.

    Args:
        device: Device of the run.
        precision: See :class:`~swila.experiments.loop.TrainingConfig`.
    """

    def __init__(self, device: str | torch.device, precision: str = "float32") -> None:
        self.device = torch.device(device)
        self.precision = precision
        self._cpu_rng = torch.get_rng_state()
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            torch.cuda.init()
            self._index = torch.cuda.current_device() if self.device.index is None else self.device.index
            self.stream = torch.cuda.Stream(self._index)
            self.stream.wait_stream(torch.cuda.current_stream(self._index))  # copies of data may still be in flight
            # a generator, not only a seed: a captured graph reads the state of this object when it is replayed
            self._generator = torch.Generator(self.device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make generators, stream and precision those of the run."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._cpu_rng)
        try:
            with self._on_the_gpu() if self.stream is not None else nullcontext():
                yield
        finally:
            self._cpu_rng = torch.get_rng_state()
            torch.set_rng_state(outside)

    @contextmanager
    def _on_the_gpu(self) -> Iterator[None]:
        assert self.stream is not None
        generator = torch.cuda.default_generators[self._index]
        outside = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._generator)
        try:
            with torch.cuda.device(self._index), torch.cuda.stream(self.stream), matmul_precision(self.precision):
                yield
        finally:
            generator.graphsafe_set_state(outside)

    def seed(self, seed: int, purpose: str) -> None:
        """Seed the generators for one purpose; call inside :meth:`entered`."""
        number = int(torch.randint(2**62, (1,), generator=stream(seed, purpose), device="cpu"))
        torch.default_generator.manual_seed(number)
        if self.stream is not None:
            torch.cuda.default_generators[self._index].manual_seed(number)

    def random_state(self) -> dict[str, Any]:
        """Return the state of the generators; call inside :meth:`entered`."""
        cuda = None if self.stream is None else torch.cuda.get_rng_state(self.device)
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the generators; call inside :meth:`entered`."""
        torch.set_rng_state(state["cpu"])
        if self.stream is not None and state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.device)
