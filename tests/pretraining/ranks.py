"""Runs of the engine in processes of their own: one or several ranks, which can be killed at a chosen moment.

The processes are forked from a server that has imported everything, so that each starts at once.
"""

import importlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
import traceback

import torch
from small_runs import wait_until_written

from swila.pretraining.engine import Preempted, pretrain

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "swila.pretraining.engine", "swila.models.language.modeling"])
PATIENCE = 120  # seconds after which a process that hangs is killed, and the test fails


class Moment:
    """A moment at which a process kills itself: before or after a call of a function.

    Args:
        where: Module and function, such as ``swila.pretraining.checkpoints:Checkpoints.save``.
        call: Number of the call, from 1.
        after: Whether the function runs before the process is killed.
        rank: The rank that is killed.
    """

    def __init__(self, where, call=1, after=False, rank=0):
        self.where, self.call, self.after, self.rank = where, call, after, rank

    def install(self, rank):
        if rank != self.rank:
            return
        module, _, names = self.where.partition(":")
        owner = importlib.import_module(module)
        *path, name = names.split(".")
        for each in path:
            owner = getattr(owner, each)
        function, calls = getattr(owner, name), iter(range(1, 1 << 30))

        def killing(*args, **kwargs):
            now = next(calls) == self.call
            if now and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, killing)


def _rank(rank, size, port, recipe, data, run, moment, at, outcome):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    if size > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if moment is not None:
        moment.install(rank)

    def report(news):
        if at is not None and news.note is None and news.step == at[0]:
            at[1]()

    found = {"result": None, "error": None, "message": ""}
    try:
        found["result"] = pretrain(recipe, data, run, report=report)
    except Preempted as stop:
        found |= {"error": "Preempted", "message": str(stop), "step": stop.step, "signal": stop.signal}
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        traceback.print_exc()
        found |= {"error": type(error).__name__, "message": str(error)}
    (outcome / f"{rank}.json").write_text(json.dumps(found))


def train(recipe, data, run, size=1, moment=None, at=None):
    """What became of each rank: its result or its error, or None if it was killed.

    Args:
        recipe: The recipe.
        data: Directory of tokens.
        run: Directory of the run.
        size: Number of ranks.
        moment: Moment at which a rank kills itself.
        at: A step and a function that rank 0 calls after it.
    """
    outcome = run.parent / f"{run.name}-outcome"
    outcome.mkdir(exist_ok=True)
    for old in outcome.iterdir():
        old.unlink()
    port = _free_port()
    ranks = [
        PROCESSES.Process(target=_rank, args=(rank, size, port, recipe, data, run, moment, at, outcome))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + PATIENCE
    for process in ranks:
        process.join(max(deadline - time.monotonic(), 0))
    hanging = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    assert not hanging, f"ranks {hanging} hang"
    files = [outcome / f"{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def terminate_self():
    """Send SIGTERM to this process, as a scheduler does before it takes a machine away."""
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt_self():
    """Send SIGINT to this process, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


def fill_disk(complete):
    """Let every file be 4 kB at most, so that weights cannot be written, once a checkpoint is complete.

    Args:
        complete: Directory of the checkpoint.
    """
    wait_until_written(complete)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def kill_soon():
    """Kill this process after a few milliseconds, wherever it is then."""
    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
