"""Where a run computes, so that several can take turns in one process without touching each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from swila.tasks import stream


class Place:
    """A device with random numbers of one's own, and on a GPU a stream of one's own.

    Inside :meth:`entered`, torch's global generators are those of the run, and so is a GPU's precision of matrix
    products; outside they are the caller's. What runs enqueue on a GPU overlaps.

    Args:
        device: where.
        precision: see :class:`~swila.training.TrainingConfig`.
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
            self.stream.wait_stream(torch.cuda.current_stream(self._index))  # data may still be on their way
            # a state of one's own, not only a seed: a captured graph reads it where it lies when it is replayed
            self._generator = torch.Generator(self.device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Compute here."""
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
            with torch.cuda.device(self._index), torch.cuda.stream(self.stream), _products(self.precision):
                yield
        finally:
            generator.graphsafe_set_state(outside)

    def calculation(self) -> AbstractContextManager[Any]:
        """For the forward calls of a model: autocast, where the precision says so."""
        reduced = self.precision == "bfloat16" and self.stream is not None
        return torch.autocast("cuda", torch.bfloat16) if reduced else nullcontext()

    def seed(self, seed: int, purpose: str) -> None:
        """Begin a stream of random numbers for one purpose; to be called inside."""
        number = int(torch.randint(2**62, (1,), generator=stream(seed, purpose), device="cpu"))
        torch.default_generator.manual_seed(number)
        if self.stream is not None:
            torch.cuda.default_generators[self._index].manual_seed(number)

    def random_state(self) -> dict[str, Any]:
        """Where the random numbers stand; to be called inside."""
        cuda = None if self.stream is None else torch.cuda.get_rng_state(self.device)
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Go on from there; to be called inside."""
        torch.set_rng_state(state["cpu"])
        if self.stream is not None and state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.device)


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Matrix products of float32 numbers as the precision says."""
    try:
        usual = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer switches, which do not go with this one: the caller's choice stays
        yield
        return
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(usual)
