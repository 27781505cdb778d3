"""A small training loop: the same seed gives the same numbers, interrupted or not."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from swila.layers import collect_auxiliary_loss, collect_routing_diagnostics
from swila.tasks import Examples, stream
from swila.training.config import TrainingConfig
from swila.training.metrics import MetricsWriter
from swila.training.objective import Objective
from swila.training.run_directory import RunDirectory


class Progress(NamedTuple):
    """Where a run stands, for whoever shows it."""

    step: int
    steps: int
    score: float | None  # at the last evaluation


class Trainer:
    """Trains one model in one run directory.

    Interrupted (Ctrl-C, or a KeyboardInterrupt from ``report``) it ends the step, saves and lets go. Made anew with the
    same arguments it goes on from there, and ends with the numbers it would have had without the interruption. A loss
    that is no longer finite ends the run as diverged.

    Args:
        make_model: builds the model; called with torch's generators seeded.
        objective: loss and metrics.
        train: the training examples.
        test: the examples it is judged by.
        config: how to train.
        directory: of the run.
        device: where.
        report: called after every step.
        tensorboard: whether to write TensorBoard's files where it is installed.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        objective: Objective,
        train: Examples,
        test: Examples,
        config: TrainingConfig,
        directory: RunDirectory,
        device: str = "cpu",
        report: Callable[[Progress], None] | None = None,
        tensorboard: bool = True,
    ) -> None:
        if len(train) < config.batch_size:
            raise ValueError(f"batch_size must be at most the {len(train)} training examples, got {config.batch_size}")
        self.make_model, self.objective, self.config, self.directory = make_model, objective, config, directory
        self.device, self.tensorboard = torch.device(device), tensorboard
        self.train, self.test = train.to(self.device), test.to(self.device)
        self.report = report or (lambda progress: None)
        self.steps_per_epoch = len(train) // config.batch_size

    def fit(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; returns the result and writes it down."""
        if (result := self.directory.result) is not None:
            return result
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            seed_torch(self.config.seed, "weights")
            model = self.make_model().to(self.device)
            seed_torch(self.config.seed, "noise")
            return self._fit(model)

    def _fit(self, model: nn.Module) -> dict[str, Any]:
        config = self.config
        model.train()
        optimizer = make_optimizer(model, config)
        state = self._restore(model, optimizer)
        writer = MetricsWriter(self.directory, state["step"], self.tensorboard)
        begun = time.perf_counter() - state["seconds"]
        order, epoch = torch.empty(0), -1
        with closing(writer), interrupts_as_flag() as interrupted:
            while state["status"] is None:
                step = state["step"]
                if step // self.steps_per_epoch != epoch:
                    epoch = step // self.steps_per_epoch
                    order = torch.randperm(len(self.train), generator=stream(config.seed, "order", epoch), device="cpu")
                    order = order.to(self.device)
                at = step % self.steps_per_epoch * config.batch_size
                lr = config.lr_at(step, self.steps_per_epoch)
                loss = self._step(model, optimizer, self.train.take(order[at : at + config.batch_size]), lr)
                state["loss"] += loss.double()
                state["counted"] += 1
                state["step"] = step = step + 1
                if evaluated := step % config.eval_every == 0 or step == config.steps:
                    writer.write(self._evaluate(model, state, lr, time.perf_counter() - begun))
                    self._save(model, optimizer, state, time.perf_counter() - begun)
                if self._told_to_stop(state) or interrupted.is_set():
                    if not evaluated:
                        self._save(model, optimizer, state, time.perf_counter() - begun)
                    raise KeyboardInterrupt
        result = {
            "status": state["status"],
            "metric": self.objective.score,
            "best": state["best"],
            "best_step": state["best_step"],
            "final": state["score"],
            "steps": state["step"],
            "seconds": round(time.perf_counter() - begun, 3),
        }
        self.directory.finish(result)
        return result

    def _told_to_stop(self, state: dict[str, Any]) -> bool:
        """Report, and whether the answer is a KeyboardInterrupt."""
        try:
            self.report(Progress(state["step"], self.config.steps, state["score"]))
        except KeyboardInterrupt:
            return True
        return False

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Examples, lr: float) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = self.objective.loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        (loss + collect_auxiliary_loss(model)).backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.config.clip)
        optimizer.step()
        return loss.detach()

    def _evaluate(self, model: nn.Module, state: dict[str, Any], lr: float, seconds: float) -> dict[str, Any]:
        """Metrics of this step; notes the best score, and whether the run is over."""
        train_loss = (state["loss"] / state["counted"]).item()
        state["loss"].zero_()
        state["counted"] = 0
        line = {"step": state["step"], "train/loss": train_loss, "lr": lr, "seconds": round(seconds, 3)}
        if (routing := collect_routing_diagnostics(model)) is not None:
            line |= {f"routing/{name}": value.item() for name, value in routing._asdict().items()}
        model.eval()
        found = self.objective.evaluate(model, self.test, 4 * self.config.batch_size)
        model.train()
        line |= {f"test/{name}": value for name, value in found.items()}
        state["score"] = score = found[self.objective.score]
        if state["best"] is None or score > state["best"]:
            state["best"], state["best_step"] = score, state["step"]
        if not math.isfinite(train_loss):
            state["status"] = "diverged"
        elif self.config.stop_at is not None and score > self.config.stop_at:
            state["status"] = "solved"
        elif state["step"] >= self.config.steps:
            state["status"] = "finished"
        return line

    def _restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state: dict[str, Any] = {"step": 0, "status": None, "score": None, "best": None, "best_step": 0, "counted": 0}
        state |= {"loss": torch.zeros((), dtype=torch.float64), "seconds": 0.0}
        if (saved := self.directory.load_checkpoint()) is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            torch.set_rng_state(saved["rng"])
            if self.device.type == "cuda" and saved["cuda_rng"] is not None:
                torch.cuda.set_rng_state(saved["cuda_rng"], self.device)
            state = saved["state"]
        state["loss"] = state["loss"].to(self.device)
        return state

    def _save(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], seconds: float) -> None:
        state["seconds"] = seconds
        cuda_rng = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        self.directory.save_checkpoint(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "rng": torch.get_rng_state(),
                "cuda_rng": cuda_rng,
                "state": state,
            }
        )


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on every parameter but those a module names in ``no_weight_decay``."""
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "no_weight_decay", ())}
    decayed = [p for p in model.parameters() if id(p) not in spared]
    exempt = [p for p in model.parameters() if id(p) in spared]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], config.lr, config.betas, fused=True)


def seed_torch(seed: int, purpose: str) -> None:
    """Seed torch's global generators, which initial weights, dropout and noise draw from, by a stream of their own."""
    torch.manual_seed(int(torch.randint(2**62, (1,), generator=stream(seed, purpose), device="cpu")))


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
