"""Ctrl-C and SIGTERM let a step end."""

import os
import signal

import pytest

from swila.training import interrupts_as_flag, terminate


@pytest.fixture
def handlers():
    """Of both signals, put back afterwards."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_is_a_ctrl_c_even_where_that_is_ignored(handlers, ctrl_c):
    signal.signal(signal.SIGINT, ctrl_c)
    signal.signal(signal.SIGTERM, terminate)
    with interrupts_as_flag() as flag:
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (ctrl_c, terminate)


def test_with_nothing_to_save_it_interrupts_at_once(handlers):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interrupts_as_flag() as flag:
        with pytest.raises(KeyboardInterrupt), flag.at_once():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), flag.at_once():
            raise AssertionError("not begun once the flag is set")


def test_other_handlers_stay(handlers):
    """A program that has its own keeps them."""
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("int"))
    signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
    with interrupts_as_flag() as flag:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ["int", "term"]
    assert not flag.is_set()
