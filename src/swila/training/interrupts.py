"""Ctrl-C and SIGTERM that let the current step complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts(threading.Event):
    """A flag that the first Ctrl-C sets.

    Attributes:
        waits: Whether the first signal only sets the flag.
        signal: Number of the first signal, None before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = True
        self.signal: int | None = None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work with nothing to save: Ctrl-C sets the flag and raises KeyboardInterrupt at once."""
        if self.is_set():
            raise KeyboardInterrupt
        self.waits = False
        try:
            yield
        finally:
            self.waits = True


def terminate(number: int, frame: Any) -> None:
    """Handle SIGTERM like Ctrl-C, also in background processes of a script, which ignore SIGINT."""
    raise KeyboardInterrupt


@contextmanager
def interrupts_as_flag() -> Iterator[Interrupts]:
    """Yield a flag that the first Ctrl-C sets, so that the current step can complete; the second interrupts at once.

    SIGTERM counts as well if :func:`terminate` handles it. Handlers that the program installed stay in place.
    """
    flag = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = {number: each for number, each in handlers.items() if each in (signal.default_int_handler, terminate)}

    def note(number: int, frame: Any) -> None:
        first = not flag.is_set()
        if first:
            flag.signal = number
        flag.set()
        if not (first and flag.waits):
            raise KeyboardInterrupt

    for number in usual:
        signal.signal(number, note)
    try:
        yield flag
    finally:
        for number, each in usual.items():
            signal.signal(number, each)
