"""Updates of the weights: one after another, or on a GPU as one captured graph that is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from swila.experiments.loop.config import TrainingConfig
from swila.experiments.loop.objective import Objective
from swila.experiments.loop.place import Place
from swila.layers import collect_auxiliary_loss
from swila.tasks import Rows, stream


class Updates:
    """The updates of one run, each a function of its number alone.

    Which examples an update sees and its learning rate are laid down for the whole run beforehand, on the device.

    Args:
        model: to be trained.
        objective: the loss.
        train: the examples, on the model's device.
        config: how to train.
        place: where.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, train: Rows, config: TrainingConfig, place: Place
    ) -> None:
        self.model, self.objective, self.train, self.config, self.place = model, objective, train, config, place
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, config)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # summed over updates
        self.schedule = order_of_examples(len(train), config).to(self.device)

    def run(self, first: int, count: int) -> None:
        """Updates ``first`` to ``first + count - 1``."""
        per_epoch = len(self.train) // self.config.batch_size
        for step in range(first, first + count):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr_at(step, per_epoch)
            self._update(self.schedule[step])

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Go on from the state of an optimizer, of whichever kind of updates."""
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["capturable"] = False

    def _update(self, rows: Tensor) -> None:
        with self.place.calculation():
            loss = self.objective.loss(self.model, self.train.take(rows))
        self.optimizer.zero_grad(set_to_none=True)
        (loss + collect_auxiliary_loss(self.model)).backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.loss += loss.detach().double()


class CapturedUpdates(Updates):
    """The same on a GPU, with nothing for the host to do but to replay a graph.

    The number of the update is a counter on the device, from which the graph reads examples and learning rate.
    The first updates are run as they are: kernels are compiled and the optimizer's state made. The parts of the model
    that a compiler can take whole (``model.parts()``) are compiled, and so is the loss of its output, which makes a few
    kernels out of many small ones.
    """

    WARM_UP = 3
    AHEAD = 2  # calls of run that may be waiting on the GPU

    def __init__(
        self, model: nn.Module, objective: Objective, train: Rows, config: TrainingConfig, place: Place
    ) -> None:
        super().__init__(model, objective, train, config, place)
        per_epoch = len(train) // config.batch_size
        rates = [config.lr_at(step, per_epoch) for step in range(config.steps)]
        self.rates = torch.tensor(rates, dtype=torch.float32, device=self.device)
        self.rate = torch.zeros((), device=self.device)
        self.step = torch.zeros(1, dtype=torch.long, device=self.device)
        self._steer()
        parts: Any = getattr(model, "parts", list)
        criterion = getattr(objective, "criterion", None)
        for part in (*parts(), *([] if criterion is None else [criterion])):
            part.compile(dynamic=False)
        self.run_before = 0
        self.turns: list[torch.cuda.Event] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, first: int, count: int) -> None:
        """Updates ``first`` to ``first + count - 1``."""
        if len(self.turns) == self.AHEAD:  # the host is not to run on: it could then not be stopped soon
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
        self._steer()

    def _steer(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

    def _next(self) -> None:
        self.rate.copy_(self.rates[self.step][0])
        self._update(self.schedule[self.step][0])
        self.step += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        self.optimizer.zero_grad(set_to_none=True)  # gradients are to lie in the graph's own memory
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # other runs of this process have work under way, which a stricter mode would take for a mistake
        with (
            compiling(),
            torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"),
        ):
            self._next()
        return graph


@contextmanager
def compiling() -> Iterator[None]:
    """Let a compiler specialise for as many kinds of models as a sweep has, each in a shape that never changes."""
    with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        yield


def order_of_examples(count: int, config: TrainingConfig) -> Tensor:
    """The examples of every update ``[steps, batch_size]``: every epoch in an order of its own, without remainders."""
    per_epoch = count // config.batch_size
    epochs = -(-config.steps // per_epoch)
    orders = [
        torch.randperm(count, generator=stream(config.seed, "order", epoch), device="cpu")[
            : per_epoch * config.batch_size
        ]
        for epoch in range(epochs)
    ]
    return torch.cat(orders).int().view(-1, config.batch_size)[: config.steps]


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on every parameter but those a module names in ``no_weight_decay``."""
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "no_weight_decay", ())}
    decayed = [p for p in model.parameters() if id(p) not in spared]
    exempt = [p for p in model.parameters() if id(p) in spared]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], config.lr, config.betas, fused=True)
