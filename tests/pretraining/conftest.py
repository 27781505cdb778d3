"""Token data and runs that several files compare with."""

import pytest
import torch
from small_runs import NOISY, PLAIN, Done, write_data

from swila.pretraining import engine


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Small models gain nothing from threads, which would wait for those of other processes."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    """Documents of random tokens."""
    return write_data(tmp_path_factory.mktemp("data") / "tokens")


@pytest.fixture(scope="package")
def plain(data, tmp_path_factory):
    """A run of softmax attention."""
    return Done(PLAIN, data, tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="package")
def noisy(data, tmp_path_factory):
    """A run of SwiLA with noise and load balancing."""
    return Done(NOISY, data, tmp_path_factory.mktemp("noisy") / "run")


@pytest.fixture
def quick(monkeypatch):
    """Runs without a full garbage collection, which takes longer than the updates of a small run."""
    monkeypatch.setattr(engine, "SETTLED", 1000)
