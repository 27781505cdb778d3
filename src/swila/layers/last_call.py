"""Auxiliary loss and routing statistics of a layer's last call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swila.ops import RoutingStats


class LastCall:
    """Auxiliary loss and routing statistics of a layer's last call; copies and pickles of a layer do not include them.

    Attributes:
        loss: Auxiliary loss, with its graph, until it is taken.
        stats: Routing statistics, detached.
    """

    def __init__(self) -> None:
        self.loss: Tensor | None = None
        self.stats: RoutingStats | None = None

    def keep_loss(self, loss: Tensor) -> None:
        """Keep the loss, unless gradient checkpointing recomputes the call: its loss has been taken before."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            self.loss = loss

    def take_loss(self) -> Tensor | None:
        """Return the loss and forget it."""
        loss, self.loss = self.loss, None
        return loss

    def __deepcopy__(self, memo: Any) -> LastCall:
        return LastCall()

    def __reduce__(self) -> tuple[type[LastCall], tuple[()]]:
        return LastCall, ()
