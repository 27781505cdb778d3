"""Ctrl-C that waits for a step to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts(threading.Event):
    """Set by the first Ctrl-C."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work with nothing to save: Ctrl-C sets the flag, and raises KeyboardInterrupt here and now."""
        if self.is_set():
            raise KeyboardInterrupt
        self.waits = False
        try:
            yield
        finally:
            self.waits = True


@contextmanager
def interrupts_as_flag() -> Iterator[Interrupts]:
    """The first Ctrl-C sets the flag, so that a step can end; the second one interrupts at once."""
    flag = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        first = not flag.is_set()
        flag.set()
        if callable(usual) and not (first and flag.waits):
            usual(number, frame)

    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, usual)
