"""A run under way: what a trainer holds between its first step and its result."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from swila.experiments.loop.updates import CapturedUpdates, Updates
from swila.layers import collect_routing_diagnostics
from swila.tasks import Rows
from swila.training.metrics import MetricsWriter

if TYPE_CHECKING:
    from swila.experiments.loop.trainer import Trainer


class Session:
    """A run under way: model, optimizer, and where it stands. All of it inside the trainer's place."""

    AT_ONCE = 32  # updates in a turn on a GPU: enough to be ahead of it, few enough to stop soon

    def __init__(self, trainer: Trainer) -> None:
        self.config, self.objective, self.directory = trainer.config, trainer.objective, trainer.directory
        self.place, self.save_every = trainer.place, trainer.save_every
        device = trainer.device
        self.test = trainer.test.to(device)
        self.validation = None if trainer.validation is None else trainer.validation.to(device)
        # what is looked at on the way
        self.seen, self.watched = ("test", self.test) if self.validation is None else ("validation", self.validation)
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
        found = self._judge(self.watched)
        line |= {f"{self.seen}/{name}": x for name, x in found.items()}
        state["score"] = score = found[self.objective.score]
        value = score if self.validation is None else -found["loss"]
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
