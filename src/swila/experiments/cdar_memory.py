"""What a model trained on CDAR does with its memory: where it writes, what it keeps, and what that is good for."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from swila.layers import SwiLA
from swila.models import SyntheticModel
from swila.tasks import CDAR, IGNORE, Examples


def kinds_of_tokens(task: CDAR, examples: Examples) -> dict[str, Tensor]:
    """Which tokens are of which kind, each ``[N, T]`` of bool."""
    tokens, query = examples.inputs, examples.labels != IGNORE
    filler = tokens == 0
    after = torch.zeros_like(filler)
    after[:, 1:] = filler[:, 1:] & query[:, :-1]
    lower = tokens < task.vocab_size // 2
    return {
        "context": (tokens > 0) & (tokens <= task.pool),
        "key": (tokens > task.pool) & lower & ~query,
        "value": ~lower,
        "query": query,
        "empty place after a query": after,
        "other empty places": filler & ~after,
    }


def memory_report(model: SyntheticModel, task: CDAR, examples: Examples) -> dict[str, Any]:
    """Accuracy of a model with one layer, group by group of queries; for SwiLA also what its gates and rates do.

    The groups are the queries of one context, in the order asked. Of SwiLA: means of the learning rate β and of the
    temporal gates over each kind of token, and accuracy when nothing is written at tokens of one kind.
    """
    report = {"examples": len(examples), **_accuracy(model, task, examples)}
    layer = model.mixers[-1]
    if not isinstance(layer, SwiLA) or len(model.mixers) > 1:
        return report
    kinds = kinds_of_tokens(task, examples)
    operands = _operands(model, layer, examples)
    names = [name for name in ("beta", "key_gate", "query_gate") if name in operands]
    report["tokens"] = {
        kind: {name: operands[name][where].mean().item() for name in names} for kind, where in kinds.items()
    }
    report["without_writes"] = {}
    for kind in ("value", "query", "empty place after a query", "other empty places"):
        with layer.changed(partial(_not_written, kinds[kind])):
            report["without_writes"][kind] = _accuracy(model, task, examples)
    return report


@torch.no_grad()
def _operands(model: SyntheticModel, layer: SwiLA, examples: Examples) -> dict[str, Tensor]:
    """What the layer hands to the operation."""
    seen: dict[str, Tensor] = {}

    def look(operands: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update(operands)
        return operands

    with layer.changed(look):
        model(examples.inputs)
    return seen


def _not_written(where: Tensor, operands: dict[str, Tensor]) -> dict[str, Tensor]:
    return operands | {"beta": operands["beta"] * (~where)[:, :, None, None, None]}


@torch.no_grad()
def _accuracy(model: SyntheticModel, task: CDAR, examples: Examples) -> dict[str, Any]:
    where = examples.labels != IGNORE
    right = (model(examples.inputs, where).argmax(-1) == examples.labels[where]).double()
    groups = right.view(len(examples), task.num_contexts, task.num_keys)
    return {"accuracy": right.mean().item(), "by_group": groups.mean((0, 2)).tolist()}
