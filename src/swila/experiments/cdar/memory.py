"""Inspection of a model trained on CDAR: its writes and gates by kind of token, and accuracy without some writes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swila.layers import SwiLA
from swila.models import SyntheticModel
from swila.tasks import CDAR, IGNORE, Examples

MEASURED = {
    "beta": "β",
    "key_gate": "gate of the key side",
    "query_gate": "gate of the query side",
    "value_length": "length of the value",
}


def kinds_of_tokens(task: CDAR, examples: Examples) -> dict[str, Tensor]:
    """Masks ``[N, T]`` of the tokens of each kind."""
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


def memory_report(model: SyntheticModel, task: CDAR, examples: Examples, batch_size: int = 32) -> dict[str, Any]:
    """Accuracy of a model with one layer, for all queries and for each group of them.

    A group holds the queries of one context, in the order asked. For SwiLA the report also holds the means of the
    learning rate β, the temporal gates and the norm of the value over each kind of token, and the accuracy when nothing
    is written at the tokens of one kind.
    """
    batches = [examples.take(slice(i, i + batch_size)) for i in range(0, len(examples), batch_size)]
    report = {"examples": len(examples), **_accuracy(model, task, batches)}
    layer = model.mixers[-1]
    if not isinstance(layer, SwiLA) or len(model.mixers) > 1:
        return report
    report["tokens"] = _means(model, layer, task, batches)
    report["without_writes"] = {}
    for kind in ("value", "query", "empty place after a query", "other empty places"):
        report["without_writes"][kind] = _accuracy(model, task, batches, (layer, kind))
    return report


@torch.no_grad()
def _means(model: SyntheticModel, layer: SwiLA, task: CDAR, batches: list[Examples]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    seen: dict[str, Tensor] = {}

    def look(operands: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update({name: operands[name] for name in ("beta", "key_gate", "query_gate") if name in operands})
        seen["value_length"] = operands["v"].norm(dim=-1)
        return operands

    for batch in batches:
        with layer.changed(look):
            model(batch.inputs, batch.labels != IGNORE)
        for kind, where in kinds_of_tokens(task, batch).items():
            total = sums.setdefault(kind, dict.fromkeys(("tokens", *seen), 0.0))
            total["tokens"] += where.sum().item()
            for name, values in seen.items():
                total[name] += values[where].flatten(1).mean(1).sum().item()
    return {
        kind: {name: value / total["tokens"] for name, value in total.items() if name != "tokens"}
        for kind, total in sums.items()
        if total["tokens"]
    }


@torch.no_grad()
def _accuracy(
    model: SyntheticModel, task: CDAR, batches: list[Examples], unwritten: tuple[SwiLA, str] | None = None
) -> dict[str, Any]:
    right = []
    for batch in batches:
        where = batch.labels != IGNORE
        without: AbstractContextManager[Any] = nullcontext()
        if unwritten is not None:
            layer, kind = unwritten
            without = layer.changed(partial(_not_written, kinds_of_tokens(task, batch)[kind]))
        with without:
            answers = model(batch.inputs, where).argmax(-1)
        right.append((answers == batch.labels[where]).double().view(-1, task.num_contexts, task.num_keys))
    groups = torch.cat(right)
    return {"accuracy": groups.mean().item(), "by_group": groups.mean((0, 2)).tolist()}


def _not_written(where: Tensor, operands: dict[str, Tensor]) -> dict[str, Tensor]:
    return operands | {"beta": operands["beta"] * (~where)[:, :, None, None, None]}
