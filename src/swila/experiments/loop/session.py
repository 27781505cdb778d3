"""What a trainer holds between the first step of a run and its result."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from swila.experiments.loop.batches import ShuffledBatches
from swila.experiments.loop.state import TrainingState
from swila.experiments.loop.updates import CapturedUpdates, Updates
from swila.layers import collect_routing_diagnostics
from swila.tasks import ExampleTensors
from swila.training.metrics import MetricsWriter
from swila.training.precision import autocast
from swila.training.result import RunResult, Status

if TYPE_CHECKING:
    from swila.experiments.loop.trainer import Trainer


class Session:
    """Model, optimizer and state of an unfinished run, from its last checkpoint if there is one.

    All methods must be called inside the trainer's isolation.
    """

    AT_ONCE = 32  # updates per turn on a GPU: enough to keep it busy, few enough to interrupt soon

    def __init__(self, trainer: Trainer) -> None:
        self.config, self.objective, self.directory = trainer.config, trainer.objective, trainer.directory
        self.isolation, self.device, self.save_every = trainer.isolation, trainer.device, trainer.save_every
        self.test = trainer.test.to(self.device)
        self.validation = None if trainer.validation is None else trainer.validation.to(self.device)
        # the set of the evaluations during training
        self.watched = "test" if self.validation is None else "validation"
        self.isolation.seed(self.config.seed, "weights")
        self.model = trainer.make_model().to(self.device)
        self.isolation.seed(self.config.seed, "noise")
        self.model.train()
        config = self.config
        train = trainer.train.to(self.device)
        batches = ShuffledBatches(train, config.batch_size, config.steps, config.seed, self.device)
        kind = CapturedUpdates if trainer.captured else Updates
        self.updates = kind(self.model, self.objective, batches, config)
        self.best_weights: dict[str, Tensor] | None = None
        self.state = TrainingState()
        self._restore()
        gpu = self.device.type == "cuda"
        self.at_once = self.AT_ONCE if gpu else 1
        self.eval_batch_size = max(4 * config.batch_size, 512 if gpu else 1)
        self.begun = time.perf_counter() - self.state.seconds
        self.saved = time.monotonic()
        self.writer = MetricsWriter(self.directory.path, self.state.step, trainer.tensorboard)

    @property
    def seconds(self) -> float:
        """Duration of the run so far, summed over all sessions."""
        return time.perf_counter() - self.begun

    def advance(self) -> None:
        """Run one update, or on a GPU several, and the evaluation after it if one is due."""
        config, state = self.config, self.state
        to_evaluation = min(config.eval_every - state.step % config.eval_every, config.steps - state.step)
        count = min(self.at_once, to_evaluation)
        self.updates.run(state.step, count)
        state.counted += count
        state.step += count
        if count == to_evaluation:
            self.writer.write(self._evaluate())
            if state.ended or time.monotonic() - self.saved > self.save_every:
                self.save()

    def _evaluate(self) -> dict[str, Any]:
        """Return the metrics of this step; updates the best score, the selected weights and the status."""
        state = self.state
        train_loss = self.updates.loss.item() / state.counted
        self.updates.loss.zero_()
        state.counted = 0
        lr = self.updates.learning_rate.at(state.step - 1)
        line = {"step": state.step, "train/loss": train_loss, "lr": lr, "seconds": round(self.seconds, 3)}
        if (routing := collect_routing_diagnostics(self.model)) is not None:
            line |= {f"routing/{name}": value.item() for name, value in routing._asdict().items()}
        found = self._metrics(self.test if self.validation is None else self.validation)
        line |= {f"{self.watched}/{name}": x for name, x in found.items()}
        state.score = score = found[self.objective.score]
        improved = state.note(score if self.validation is None else -found["loss"])
        if improved and self.validation is not None:
            self.best_weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
        state.status = self._status(train_loss, score)
        return line

    def _status(self, train_loss: float, score: float) -> Status | None:
        """Return how training ends with this evaluation, or None if it continues."""
        config, state = self.config, self.state
        if not math.isfinite(train_loss):
            return "diverged"
        if config.stop_at is not None and score > config.stop_at:
            return "solved"
        if state.step >= config.steps:
            return "finished"
        return "stopped" if self._out_of_patience() else None

    def _out_of_patience(self) -> bool:
        if self.config.patience is None or self.validation is None:
            return False
        return self.state.step - self.state.best_step >= self.config.patience * self.config.eval_every

    def _metrics(self, data: ExampleTensors) -> dict[str, float]:
        """Return the metrics of the current weights."""
        self.model.eval()
        # a replayed graph writes the statistics of training to these tensors, but does not assign them again
        kept = [(call, call.stats) for module in self.model.modules() if (call := getattr(module, "last_call", None))]
        # other shapes than those of the updates, which are not worth a compilation
        with autocast(self.config.precision, self.device), torch.compiler.set_stance("force_eager"):
            found = self.objective.evaluate(self.model, data, self.eval_batch_size)
        for call, stats in kept:
            call.stats = stats
        self.model.train()
        return found

    def result(self) -> RunResult:
        """Return the result of the run; with a validation set, evaluates the selected weights."""
        state = self.state
        result: dict[str, Any] = {"status": state.status, "metric": self.objective.score, "best": state.best}
        if self.validation is not None:
            result["best"] = None
            if self.best_weights is not None:
                self.model.load_state_dict(self.best_weights)
                result["test"] = self._metrics(self.test)
                result["validation"] = self._metrics(self.validation)
                result["best"] = result["test"][self.objective.score]
        result |= {
            "best_step": state.best_step,
            "final" if self.validation is None else "final_validation": state.score,
            "steps": state.step,
            "device": str(self.device),
            "seconds": round(self.seconds, 3),
        }
        return cast(RunResult, result)

    def _restore(self) -> None:
        saved = self.directory.load_checkpoint()
        if saved is None:
            return
        try:
            model, optimizer, best_weights = saved["model"], saved["optimizer"], saved["best_model"]
            loss, random, state = saved["loss"], saved["random"], TrainingState(**saved["state"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{self.directory.path / 'checkpoint.pt'} was written by another version of swila; "
                f"delete it to restart the run, or finish the run with that version"
            ) from error
        self.model.load_state_dict(model)
        self.updates.load_optimizer(optimizer)
        self.updates.loss.copy_(loss)
        self.isolation.set_random_state(random)
        self.best_weights, self.state = best_weights, state

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.seconds = self.seconds
        self.directory.save_checkpoint(
            {
                "model": self.model.state_dict(),
                "best_model": self.best_weights,
                "optimizer": self.updates.optimizer.state_dict(),
                "random": self.isolation.random_state(),
                "loss": self.updates.loss,
                "state": asdict(self.state),
            }
        )
        self.saved = time.monotonic()
