"""What a layer's last call left behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swila.ops import RoutingStats


class LastCall:
    """A loss to be collected and statistics to be looked at; copies and pickles of a layer begin without them.

    Attributes:
        loss: the auxiliary loss, with its graph, until it is taken.
        stats: the routing statistics, detached.
    """

    def __init__(self) -> None:
        self.loss: Tensor | None = None
        self.stats: RoutingStats | None = None

    def keep_loss(self, loss: Tensor) -> None:
        """Note the loss, unless this is a recomputation by gradient checkpointing: its loss was taken long ago."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            self.loss = loss

    def take_loss(self) -> Tensor | None:
        """The loss, once."""
        loss, self.loss = self.loss, None
        return loss

    def __deepcopy__(self, memo: Any) -> LastCall:
        return LastCall()

    def __reduce__(self) -> tuple[type[LastCall], tuple[()]]:
        return LastCall, ()
