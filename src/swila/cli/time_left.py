"""Estimate of the remaining time of a sweep: of each active run, and of all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace
from statistics import fmean


class TimeLeft:
    """Remaining time, estimated from the steps since this object was made.

    Steps of earlier commands do not count as speed, nor do steps that a run skips because it is solved or failed. A run
    that waits, or whose speed is not known yet, is assumed to have the average speed of the others. Waiting runs start
    in order, each in the slot that is free first; so the total is at least that of the longest active run.

    Args:
        planned: Number of steps of each run, by name, in the order in which the runs start.
        jobs: Number of concurrent runs.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, planned: Mapping[str, int], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._planned, self._jobs, self._clock = planned, jobs, clock
        self._waiting = list(planned)
        self._active: list[str] = []
        self._first: dict[str, tuple[float, int]] = {}  # time and step of the first report of a run
        self._last: dict[str, tuple[float, int]] = {}

    def begun(self, name: str) -> None:
        """Record that a run has started."""
        if name in self._waiting:
            self._waiting.remove(name)
            self._active.append(name)

    def progressed(self, name: str, step: int) -> None:
        """Record the step of an active run."""
        self.begun(name)
        self._last[name] = self._clock(), step
        self._first.setdefault(name, self._last[name])

    def ended(self, name: str) -> None:
        """Record that a run has ended."""
        for names in (self._waiting, self._active):
            if name in names:
                names.remove(name)

    def of(self, name: str) -> float | None:
        """Return the remaining seconds of an active run, None while no speed is known."""
        return self._left(name, self._average())

    def of_all(self) -> float | None:
        """Return the remaining seconds of all runs, None while no speed is known."""
        average = self._average()
        if average is None:
            return None if self._waiting or self._active else 0.0
        slots = [0.0] * (self._jobs - len(self._active))
        slots += [self._left(name, average) or 0.0 for name in self._active]
        heapify(slots)
        for name in self._waiting:
            heapreplace(slots, slots[0] + average * self._planned[name])
        return max(slots, default=0.0)

    def _left(self, name: str, average: float | None) -> float | None:
        if average is None:
            return None
        if name not in self._last:
            return average * self._planned[name]
        own, (at, step) = self._pace(name), self._last[name]
        expected = (average if own is None else own) * (self._planned[name] - step)
        return max(expected - (self._clock() - at), 0.0)

    def _pace(self, name: str) -> float | None:
        """Return the seconds per step of a run, None before its first step."""
        (begun, first), (now, last) = self._first[name], self._last[name]
        return (now - begun) / (last - first) if last > first else None

    def _average(self) -> float | None:
        """Return the seconds per step averaged over the runs, None while no speed is known."""
        known = [pace for name in self._last if (pace := self._pace(name)) is not None]
        return fmean(known) if known else None


def in_words(seconds: float | None) -> str:
    """Format seconds as ``1:02:03``."""
    if seconds is None:
        return "-:--:--"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
