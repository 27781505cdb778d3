"""Updates of the weights: launched one by one, or on a GPU replayed from a captured graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from swila.experiments.loop.batches import ShuffledBatches
from swila.experiments.loop.config import TrainingConfig
from swila.experiments.loop.objective import Objective
from swila.layers import collect_auxiliary_loss
from swila.training.compilation import compiling
from swila.training.optimizer import make_optimizer
from swila.training.precision import autocast


class Updates:
    """The updates of one run, each a function of its number alone.

    Args:
        model: Model to train.
        objective: Loss.
        batches: Batches, on the model's device.
        config: Optimizer, learning rate, clipping and precision.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, batches: ShuffledBatches[Any], config: TrainingConfig
    ) -> None:
        self.model, self.objective, self.batches, self.config = model, objective, batches, config
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, config.lr, config.weight_decay, config.betas)
        self.learning_rate = config.learning_rate(batches.steps_per_epoch)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # summed over updates

    def run(self, first: int, count: int) -> None:
        """Run updates ``first`` to ``first + count - 1``."""
        for step in range(first, first + count):
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate.at(step)
            self._update(self.batches.batch(step))

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Restore the state of an optimizer, captured or not."""
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["capturable"] = False

    def _update(self, batch: Any) -> None:
        with autocast(self.config.precision, self.device):
            loss = self.objective.loss(self.model, batch)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + collect_auxiliary_loss(self.model)).backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.loss += loss.detach().double()


class CapturedUpdates(Updates):
    """The same updates on a GPU, replayed from a CUDA graph.

    The number of the update is a counter on the device, from which the graph reads its batch and learning rate. The
    first updates run without the graph, to compile the kernels and to create the optimizer's state. The parts of the
    model that ``torch.compile`` accepts whole (``model.parts()``) and the criterion of the objective are compiled,
    which fuses many small kernels.
    """

    WARM_UP = 3
    AHEAD = 2  # calls of run that may be queued on the GPU

    def __init__(
        self, model: nn.Module, objective: Objective, batches: ShuffledBatches[Any], config: TrainingConfig
    ) -> None:
        super().__init__(model, objective, batches, config)
        rates = [self.learning_rate.at(step) for step in range(config.steps)]
        self.rates = torch.tensor(rates, dtype=torch.float32, device=self.device)
        self.rate = torch.zeros((), device=self.device)
        self.step = torch.zeros(1, dtype=torch.long, device=self.device)
        self._read_rate_from_device()
        parts: Any = getattr(model, "parts", list)
        criterion = getattr(objective, "criterion", None)
        for part in (*parts(), *([] if criterion is None else [criterion])):
            part.compile(dynamic=False)
        self.run_before = 0
        self.turns: list[torch.cuda.Event] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, first: int, count: int) -> None:
        """Run updates ``first`` to ``first + count - 1``."""
        if len(self.turns) == self.AHEAD:  # a host far ahead of the GPU could not be interrupted soon
            self.turns.pop(0).synchronize()
        self.step.fill_(first)
        for _ in range(count):
            if self.graph is not None:
                self.graph.replay()
                continue
            with compiling():
                self._next()
            self.run_before += 1
            if self.run_before == self.WARM_UP:
                self.graph = self._captured()
        self.turns.append(torch.cuda.Event())
        self.turns[-1].record()

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """See :meth:`Updates.load_optimizer`."""
        super().load_optimizer(state)
        self._read_rate_from_device()

    def _read_rate_from_device(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

    def _next(self) -> None:
        self.rate.copy_(self.rates[self.step][0])
        self._update(self.batches.batch_at(self.step))
        self.step += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        self.optimizer.zero_grad(set_to_none=True)  # the gradients must be in the graph's own memory
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # other runs of this process use the GPU meanwhile, which a stricter mode would report as an error
        with (
            compiling(),
            torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"),
        ):
            self._next()
        return graph
