"""Token data and runs that several files compare with."""

import pytest
from small_runs import NOISY, PLAIN, Done, write_data

from swila.pretraining import engine


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Documents of random tokens."""
    return write_data(tmp_path_factory.mktemp("data") / "tokens")


@pytest.fixture(scope="session")
def plain(data, tmp_path_factory):
    """A run of softmax attention."""
    return Done(PLAIN, data, tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="session")
def noisy(data, tmp_path_factory):
    """A run of SwiLA with noise and load balancing."""
    return Done(NOISY, data, tmp_path_factory.mktemp("noisy") / "run")


@pytest.fixture
def quick(monkeypatch):
    """Runs without a full garbage collection, which takes longer than the updates of a small run."""
    monkeypatch.setattr(engine, "SETTLED", 1000)
