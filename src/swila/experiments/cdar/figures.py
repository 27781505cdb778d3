"""The pictures of a CDAR experiment: those of recall, and where SwiLA keeps what."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from swila.experiments.cdar.routing import routing, shares_by_context
from swila.experiments.experiment import runs_in
from swila.experiments.recall import figures as recall_figures
from swila.experiments.recall.runs import MODELS
from swila.experiments.training_run import TrainingRun
from swila.plots import RoutingPanel, routing_picture
from swila.tasks import CDAR, IGNORE, Examples
from swila.training import RunDirectory

logger = logging.getLogger("swila")


def draw(record: dict[str, Any], out: Path, directory: Path | None) -> list[list[Path]]:
    """Those of every recall experiment, and where SwiLA keeps what if there is a directory with weights."""
    routed = [] if directory is None else draw_routing(runs_in(directory), directory, out)
    return [*recall_figures.draw(record, out), *([routed] if routed else [])]


def draw_routing(runs: Sequence[TrainingRun], directory: Path, out: Path) -> list[Path]:
    """For the best run of each SwiLA model of one size: which mixture each token of one test sequence went to.

    The size is the one at which the two models differ most.

    Which mixture belongs to which context, and which output dims follow the context most (they come first), is found on
    other sequences; rows and colours are the same for writing and reading.
    The weights are the last ones of a run, and so is the accuracy in the title.
    """
    panels: list[RoutingPanel] = []
    task = _task(runs[0])
    test = runs[0].data("test")
    shown, others = test.take(slice(0, 1)), test.take(slice(1, 17))
    chosen = _to_compare(runs, directory)
    for run, accuracy in chosen:
        model = run.label
        try:
            network = run.load(directory / run.name)
        except ValueError as error:  # its result counts all the same
            logger.warning("%s is left out of the picture of the routing: %s", run.name, error)
            continue
        learnt, trace = routing(network, others), routing(network, shown)
        owned = sum(shares_by_context(side, others.context, task.num_contexts) for side in learnt)
        assert isinstance(owned, torch.Tensor)
        order = _mixture_of_context(owned)  # one colour for a mixture, whether written or read
        right = owned.permute(1, 3, 0, 2).flatten(0, 1).gather(2, order.unsqueeze(-1))  # a context's share in its own
        rows = right.mean((1, 2)).argsort(descending=True)
        for side, what in zip(trace, ("writing", "reading"), strict=True):
            shares = side[0].permute(1, 3, 0, 2).flatten(0, 1)  # [H V, T, J]
            shares = shares.gather(2, order[:, None, :].expand(-1, shares.shape[1], -1))
            title = f"{MODELS[model]} (accuracy {accuracy:.2f}), {what}"
            panels.append(RoutingPanel(title, shares[rows].numpy(), rows.tolist()))
    if not panels:
        return []
    zone = task.num_contexts * (1 + 2 * task.num_keys)
    tokens = _token_names(shown, task.num_contexts, zone) if task.length <= 40 else None
    title = f"Which mixture holds which context (width {chosen[0][0].model.hidden_size})"
    return routing_picture(panels, shown.context[0].tolist(), tokens, zone, title, out / "routing")


def _to_compare(runs: Sequence[TrainingRun], directory: Path) -> list[tuple[TrainingRun, float]]:
    """The best runs of both models, with their final accuracies, at the size at which these differ most."""
    sizes: dict[str, dict[str, tuple[TrainingRun, float]]] = {}
    for run in runs:
        accuracy = None if run.variant else _final(run, directory)
        if run.label not in ("temporal-swila", "swila") or accuracy is None:
            continue
        best = sizes.setdefault(run.size, {})
        if run.label not in best or best[run.label][1] < accuracy:
            best[run.label] = run, accuracy
    both = [best for best in sizes.values() if len(best) == 2]
    if both:
        best = max(both, key=lambda best: best["temporal-swila"][1] - best["swila"][1])
    else:
        best = max(sizes.values(), key=lambda best: max(accuracy for _, accuracy in best.values()), default={})
    return [best[model] for model in ("temporal-swila", "swila") if model in best]


def _final(run: TrainingRun, directory: Path) -> float | None:
    """Accuracy of the weights a run left, None if it left none worth looking at."""
    own = RunDirectory(directory / run.name)
    result = own.result
    if result is None or result["status"] == "diverged" or not (own.path / "checkpoint.pt").exists():
        return None
    return result["final"]


def _task(run: TrainingRun) -> CDAR:
    if not isinstance(run.task, CDAR):
        raise ValueError(f"run must be one of CDAR, got one of {type(run.task).__name__}")
    return run.task


def _mixture_of_context(shares: torch.Tensor) -> torch.Tensor:
    """For each output dim the mixture that belongs to each context: ``[C, H, J, V]`` to ``[H V, C]``.

    Mixtures have no names of their own; greedily, the pair that stands out most is matched first.
    """
    C, _, J, _ = shares.shape
    excess = (shares - shares.mean(0)).permute(1, 3, 0, 2).flatten(0, 1).clone()  # [H V, C, J]
    order = torch.zeros(len(excess), C, dtype=torch.long)
    for d, table in enumerate(excess):
        for _ in range(min(C, J)):
            c, j = divmod(int(table.argmax()), J)
            order[d, c] = j
            table[c, :] = -torch.inf
            table[:, j] = -torch.inf
    return order


def _token_names(example: Examples, contexts: int, zone: int) -> list[str]:
    """Short names: contexts A, B, ..., keys k1, k2, ..., values v, empty places blank, queries ``k1?``."""
    inputs, labels = example.inputs[0].tolist(), example.labels[0].tolist()
    keys: dict[int, str] = {}
    names = []
    for t, (token, label) in enumerate(zip(inputs, labels, strict=True)):
        if token == 0:
            names.append("")
        elif token <= contexts:
            names.append("ABCDEFGH"[token - 1])
        elif t < zone and inputs[t - 1] in keys and (t - 1) % (zone // contexts) % 2 == 1:
            names.append("v")
        else:
            names.append(keys.setdefault(token, f"k{len(keys) + 1}") + ("?" if label != IGNORE else ""))
    return names
