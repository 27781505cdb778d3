"""A small training loop: the same seed gives the same numbers, interrupted or not."""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from swila.layers import collect_routing_diagnostics
from swila.tasks import Rows
from swila.training.config import TrainingConfig
from swila.training.metrics import MetricsWriter
from swila.training.objective import Objective
from swila.training.place import Place
from swila.training.run_directory import RunDirectory
from swila.training.updates import CapturedUpdates, Updates


class Progress(NamedTuple):
    """Where a run stands, for whoever shows it."""

    step: int
    steps: int
    score: float | None  # at the last evaluation
    metric: str = "score"


class Trainer:
    """Trains one model in one run directory.

    :meth:`fit` trains to the end. Several trainers can take turns in one process: :meth:`advance` until it is
    :attr:`over`, then :meth:`finish`. On a GPU, what they enqueue runs side by side.

    With ``validation`` examples the weights with the lowest loss on them are kept, and judged on ``test`` at the end.
    Without, the test set is looked at in every evaluation, and the best of them counts.

    Interrupted (Ctrl-C, or a KeyboardInterrupt from ``report``) :meth:`fit` ends the step, saves and lets go. Made anew
    with the same arguments it goes on from there, and ends with the numbers it would have had without the interruption.
    A run ends as ``"finished"``; as ``"solved"`` beyond ``stop_at``; as ``"stopped"`` out of patience; and as
    ``"diverged"`` when its loss is no longer finite.

    Args:
        make_model: builds the model; called with torch's generators seeded.
        objective: loss and metrics.
        train: the training examples.
        test: the examples it is judged by.
        config: how to train.
        directory: of the run.
        device: where.
        report: called by :meth:`fit` after every step (on a GPU: after several).
        tensorboard: whether to write TensorBoard's files where it is installed.
        validation: the examples by which weights are chosen.
        captured: whether updates are replayed from a CUDA graph; by default on a GPU.
        save_every: seconds between checkpoints, at least.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        objective: Objective,
        train: Rows,
        test: Rows,
        config: TrainingConfig,
        directory: RunDirectory,
        device: str = "cpu",
        report: Callable[[Progress], None] | None = None,
        tensorboard: bool = True,
        validation: Rows | None = None,
        captured: bool | None = None,
        save_every: float = 20.0,
    ) -> None:
        if len(train) < config.batch_size:
            raise ValueError(f"batch_size must be at most the {len(train)} training examples, got {config.batch_size}")
        self.make_model, self.objective, self.config, self.directory = make_model, objective, config, directory
        self.place = Place(device, config.precision)
        self.device = self.place.device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.train, self.test, self.validation = train, test, validation
        self.report = report or (lambda progress: None)
        self.tensorboard, self.save_every = tensorboard, save_every
        self._session: _Session | None = None

    def fit(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; returns the result and writes it down."""
        if (result := self.directory.result) is not None:
            return result
        try:
            with interrupts_as_flag() as interrupted:
                self.directory.note_start()
                while not self.over:
                    progress = self.advance()
                    self.directory.note_progress(progress)
                    try:
                        self.report(progress)
                    except KeyboardInterrupt:
                        interrupted.set()
                    if interrupted.is_set():
                        self.save()
                        raise KeyboardInterrupt
            return self.finish()
        finally:
            self.close()

    @property
    def over(self) -> bool:
        """Whether training is over."""
        return self.session.state["status"] is not None

    @property
    def session(self) -> _Session:
        """The run under way; begun, or taken up again, when it is first asked for."""
        if self._session is None:
            with self.place.entered():
                self._session = _Session(self)
        return self._session

    def advance(self) -> Progress:
        """Train a little: a step, or on a GPU several, and the evaluation after it if one is due."""
        session = self.session
        with self.place.entered():
            session.advance()
        return Progress(session.state["step"], self.config.steps, session.state["score"], self.objective.score)

    def save(self) -> None:
        """Write a checkpoint."""
        session = self.session
        with self.place.entered():
            session.save()

    def finish(self) -> dict[str, Any]:
        """Judge the chosen weights, write the result down and return it; once training is over."""
        session = self.session
        with self.place.entered():
            result = session.result()
        self.directory.finish(result)
        self.close()
        return result

    def close(self) -> None:
        """Let go of the model and the files."""
        if self._session is not None:
            self._session.writer.close()
            self._session = None
            if self.device.type == "cuda":  # a compiled model is a cycle, and holds the memory of its graph
                gc.collect()


class _Session:
    """A run under way: model, optimizer, and where it stands. All of it inside the trainer's place."""

    AT_ONCE = 16  # updates in a turn on a GPU: enough to be ahead of it, few enough to stop soon

    def __init__(self, trainer: Trainer) -> None:
        self.config, self.objective, self.directory = trainer.config, trainer.objective, trainer.directory
        self.place, self.save_every = trainer.place, trainer.save_every
        device = trainer.device
        self.test = trainer.test.to(device)
        self.validation = None if trainer.validation is None else trainer.validation.to(device)
        self.place.seed(self.config.seed, "weights")
        self.model = trainer.make_model().to(device)
        self.place.seed(self.config.seed, "noise")
        self.model.train()
        train = trainer.train.to(device)
        kind = CapturedUpdates if trainer.captured else Updates
        self.updates = kind(self.model, self.objective, train, self.config, self.place)
        self.best_weights: dict[str, Tensor] | None = None
        self.state: dict[str, Any] = {
            "step": 0, "status": None, "score": None, "best": None, "best_step": 0, "counted": 0, "seconds": 0.0
        }  # fmt: skip
        self._restore()
        gpu = device.type == "cuda"
        self.at_once = self.AT_ONCE if gpu else 1
        self.at_a_look = max(4 * self.config.batch_size, 512 if gpu else 1)
        self.begun = time.perf_counter() - self.state["seconds"]
        self.saved = time.monotonic()
        self.writer = MetricsWriter(self.directory, self.state["step"], trainer.tensorboard)

    @property
    def seconds(self) -> float:
        """Time spent on this run, over all its sessions."""
        return time.perf_counter() - self.begun

    def advance(self) -> None:
        config, step = self.config, self.state["step"]
        to_evaluation = min(config.eval_every - step % config.eval_every, config.steps - step)
        count = min(self.at_once, to_evaluation)
        self.updates.run(step, count)
        self.state["counted"] += count
        self.state["step"] += count
        if count == to_evaluation:
            self.writer.write(self._evaluate())
            if self.state["status"] is not None or time.monotonic() - self.saved > self.save_every:
                self.save()

    def _evaluate(self) -> dict[str, Any]:
        """Metrics of this step; notes the best score, and whether the run is over."""
        state, config = self.state, self.config
        train_loss = self.updates.loss.item() / state["counted"]
        self.updates.loss.zero_()
        state["counted"] = 0
        lr = config.lr_at(state["step"] - 1, len(self.updates.train) // config.batch_size)
        line = {"step": state["step"], "train/loss": train_loss, "lr": lr, "seconds": round(self.seconds, 3)}
        if (routing := collect_routing_diagnostics(self.model)) is not None:
            line |= {f"routing/{name}": value.item() for name, value in routing._asdict().items()}
        chosen_by = self.objective.score if self.validation is None else "loss"
        found = self._judge(self.test if self.validation is None else self.validation)
        line |= {f"{'test' if self.validation is None else 'validation'}/{name}": x for name, x in found.items()}
        state["score"] = score = found[self.objective.score]
        value = score if self.validation is None else -found[chosen_by]
        if math.isfinite(value) and (state["best"] is None or value > state["best"]):
            state["best"], state["best_step"] = value, state["step"]
            if self.validation is not None:
                self.best_weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
        if not math.isfinite(train_loss):
            state["status"] = "diverged"
        elif config.stop_at is not None and score > config.stop_at:
            state["status"] = "solved"
        elif state["step"] >= config.steps:
            state["status"] = "finished"
        elif self._out_of_patience():
            state["status"] = "stopped"
        return line

    def _out_of_patience(self) -> bool:
        if self.config.patience is None or self.validation is None:
            return False
        return self.state["step"] - self.state["best_step"] >= self.config.patience * self.config.eval_every

    def _judge(self, data: Rows) -> dict[str, float]:
        self.model.eval()
        # statistics of training: a replayed graph writes to these tensors, but does not note again where they are
        kept = [(call, call.stats) for module in self.model.modules() if (call := getattr(module, "last_call", None))]
        # of another shape than the updates: not worth a compilation of its own
        with self.place.calculation(), torch.compiler.set_stance("force_eager"):
            found = self.objective.evaluate(self.model, data, self.at_a_look)
        for call, stats in kept:
            call.stats = stats
        self.model.train()
        return found

    def result(self) -> dict[str, Any]:
        """What came out."""
        state = self.state
        result = {"status": state["status"], "metric": self.objective.score, "best": state["best"]}
        if self.validation is not None:
            result["best"] = None
            if self.best_weights is not None:
                self.model.load_state_dict(self.best_weights)
                result["test"] = self._judge(self.test)
                result["validation"] = self._judge(self.validation)
                result["best"] = result["test"][self.objective.score]
        return result | {
            "best_step": state["best_step"],
            "final" if self.validation is None else "final_validation": state["score"],
            "steps": state["step"],
            "device": str(self.place.device),
            "seconds": round(self.seconds, 3),
        }

    def _restore(self) -> None:
        if (saved := self.directory.load_checkpoint()) is not None:
            self.model.load_state_dict(saved["model"])
            self.updates.load_optimizer(saved["optimizer"])
            self.updates.loss.copy_(saved["loss"])
            self.place.set_random_state(saved["random"])
            self.best_weights, self.state = saved["best_model"], saved["state"]

    def save(self) -> None:
        self.state["seconds"] = self.seconds
        self.directory.save_checkpoint(
            {
                "model": self.model.state_dict(),
                "best_model": self.best_weights,
                "optimizer": self.updates.optimizer.state_dict(),
                "random": self.place.random_state(),
                "loss": self.updates.loss,
                "state": self.state,
            }
        )
        self.saved = time.monotonic()


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
