"""Fixtures: the device and backends under test, and memory that holds NaN until something is written to it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

import pytest
import torch

# Triton reads it when it is imported, which the conftest.py of a folder may do before pytest_configure; workers inherit
if not re.search("--device[= ]cuda", " ".join(sys.argv)) and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"

from swila.ops import backends
from swila.ops.backends import all_backends, get_backend, why_not
from swila.testing import make_call, problem_of

with torch.device("cpu"):
    torch.empty(0)  # torch notes its constructors at the first use of a default device: before they are poisoned


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device to test on: cpu or cuda")


def pytest_configure(config):
    config.addinivalue_line("markers", "unpoisoned: leave torch.empty alone (tracers look at it)")
    torch.manual_seed(0)
    if hasattr(config, "workerinput"):  # the workers share the cores
        torch.set_num_threads(1)


def pytest_generate_tests(metafunc):
    """``backend``: each that is compared with the specification on the device; ``any_backend``: that one too, and
    ``asked_for``: also ``auto``.
    """
    problem = replace(problem_of(make_call()), device=metafunc.config.getoption("--device"))
    served = [b.name for b in all_backends() if why_not(b, problem) is None]
    if problem.device != "cpu":  # the torch paths are the same there, and take long
        served = [name for name in served if not get_backend(name).slow_on_gpu]
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", [name for name in served if name != "reference"])
    if "any_backend" in metafunc.fixturenames:
        metafunc.parametrize("any_backend", served)
    if "asked_for" in metafunc.fixturenames:
        metafunc.parametrize("asked_for", [*served, "auto"])


@pytest.fixture
def device(request):
    return request.config.getoption("--device")


@pytest.fixture
def on_the_device(device, monkeypatch):
    """Whatever the test makes is on the device."""
    if device != "cpu":
        torch.set_default_device(device)
        monkeypatch.setattr(backends, "_say_slow", lambda *_: None)
    yield
    torch.set_default_device(None)


@pytest.fixture(autouse=True)
def poisoned_memory(request, monkeypatch):
    """Fill fresh floating memory with NaN, so that reading it before writing shows."""
    if request.node.get_closest_marker("unpoisoned"):
        return

    def poison(new):
        def empty(*args, **kwargs):
            x = new(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() and not x.requires_grad else x

        return empty

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
