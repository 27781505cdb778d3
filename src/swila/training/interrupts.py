"""Ctrl-C that waits for a step to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_as_flag() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the flag, so that a step can end; the second one interrupts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        if flag.is_set() and callable(usual):
            usual(number, frame)
        flag.set()

    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, usual)
