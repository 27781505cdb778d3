"""How long a sweep will take: of each run under way, and of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace
from statistics import fmean


class TimeLeft:
    """Time left, from the steps that were computed since it was made.

    Steps that a run had done before do not count as speed, nor do those it left out because it was solved or had
    failed. A run whose speed is not known yet, or that waits, is taken to be as fast as the others on average. The runs
    that wait are handed out in order, each to the place that is free first: so all of them take at least as long as
    the longest run under way.

    Args:
        planned: the steps of each run, by name, in the order in which they are begun.
        jobs: how many are under way at a time.
        clock: seconds.
    """

    def __init__(self, planned: Mapping[str, int], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._planned, self._jobs, self._clock = planned, jobs, clock
        self._waiting = list(planned)
        self._under_way: list[str] = []
        self._first: dict[str, tuple[float, int]] = {}  # when a run was first heard of, and at which step
        self._last: dict[str, tuple[float, int]] = {}

    def begun(self, name: str) -> None:
        """Note that a run is under way."""
        if name in self._waiting:
            self._waiting.remove(name)
            self._under_way.append(name)

    def progressed(self, name: str, step: int) -> None:
        """Note that a run under way has come to a step."""
        self.begun(name)
        self._last[name] = self._clock(), step
        self._first.setdefault(name, self._last[name])

    def over(self, name: str) -> None:
        """Note that nothing is left of a run."""
        for names in (self._waiting, self._under_way):
            if name in names:
                names.remove(name)

    def of(self, name: str) -> float | None:
        """Seconds left of a run under way, None if nothing is known of speeds yet."""
        return self._left(name, self._average())

    def of_all(self) -> float | None:
        """Seconds left of all runs, None if nothing is known of speeds yet."""
        average = self._average()
        if average is None:
            return None if self._waiting or self._under_way else 0.0
        places = [0.0] * (self._jobs - len(self._under_way))
        places += [self._left(name, average) or 0.0 for name in self._under_way]
        heapify(places)
        for name in self._waiting:
            heapreplace(places, places[0] + average * self._planned[name])
        return max(places, default=0.0)

    def _left(self, name: str, average: float | None) -> float | None:
        if average is None:
            return None
        if name not in self._last:
            return average * self._planned[name]
        own, (at, step) = self._pace(name), self._last[name]
        expected = (average if own is None else own) * (self._planned[name] - step)
        return max(expected - (self._clock() - at), 0.0)

    def _pace(self, name: str) -> float | None:
        """Seconds for a step of a run, None if it has not been seen to take one."""
        (begun, first), (now, last) = self._first[name], self._last[name]
        return (now - begun) / (last - first) if last > first else None

    def _average(self) -> float | None:
        """Seconds for a step, on average over the runs; None if nothing is known yet."""
        known = [pace for name in self._last if (pace := self._pace(name)) is not None]
        return fmean(known) if known else None


def in_words(seconds: float | None) -> str:
    """Hours, minutes and seconds, as ``1:02:03``."""
    if seconds is None:
        return "-:--:--"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
