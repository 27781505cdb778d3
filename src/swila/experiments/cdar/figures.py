"""Figures of CDAR: those of every recall experiment, and which mixture of SwiLA holds which context."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from swila.experiments.catalogue import title as title_of
from swila.experiments.cdar.routing import mixture_of_context, routing, shares_by_context
from swila.experiments.experiment import runs_in
from swila.experiments.recall import figures as recall_figures
from swila.experiments.recall.summary import RecallRow
from swila.experiments.record import Record
from swila.experiments.training_run import TrainingRun
from swila.plots import About, Plateau, RoutingPanel, routing_picture
from swila.plots.routing import MOST_CONTEXTS
from swila.tasks import CDAR, IGNORE, Examples
from swila.training import RunDirectory

OTHERS = 16  # sequences on which mixtures are assigned to contexts
COMPARED = ("temporal-swila", "swila")
logger = logging.getLogger("swila")


def draw(record: Record[RecallRow], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Draw the figures of every recall experiment, and the routing if there is a directory with weights."""
    figures = recall_figures.draw(record, out, title(record), plateau(record))
    routed = [] if directory is None else draw_routing(runs_in(directory), directory, out)
    return [*figures, routed] if routed else figures


def title(record: Record[RecallRow]) -> str:
    """Name and size of the task."""
    return _title(record["task"]["num_contexts"], record["task"]["num_keys"], record["task"]["length"])


def _title(contexts: int, keys: int, length: int) -> str:
    return f"CDAR: {contexts} contexts of {keys} keys, length {length:,}"


def plateau(record: Record[RecallRow]) -> Plateau:
    """Accuracy of a model that recalls values but not the context."""
    return Plateau(record["plateau"], "1/C", "knowing the values but not the context")


def draw_routing(runs: Sequence[TrainingRun], directory: Path, out: Path) -> list[Path]:
    """Draw which mixture each token of one test sequence went to, for the best run of each SwiLA model of one size.

    The size is the one at which the two models differ most. Mixtures have no order of their own: on other test
    sequences, each output dim's mixtures are assigned to the contexts whose tokens they serve most. The rows are sorted
    by how well the assignment fits there, and are the same for writing and reading. The weights are the last ones of a
    run, and the accuracy in the title is theirs.

    Returns no path if there is nothing to draw: no weights, more contexts than colours, or other contexts in every
    sequence (``context_pool``), so that no mixture can belong to one of them.
    """
    task = _task(runs[0])
    if task.pool > task.num_contexts or task.num_contexts > MOST_CONTEXTS:
        logger.warning(
            "no picture of the routing: it needs the same contexts in all sequences, at most %d, got %d of %d",
            *(MOST_CONTEXTS, task.num_contexts, task.pool),
        )
        return []
    test = runs[0].data("test")
    shown, others = test.take(slice(0, 1)), test.take(slice(1, 1 + OTHERS))
    panels: list[RoutingPanel] = []
    chosen = _to_compare(runs, directory)
    for run, accuracy in chosen:
        try:
            network = run.load(directory / run.name)
        except ValueError as error:  # its result counts all the same
            logger.warning("%s is left out of the picture of the routing: %s", run.name, error)
            continue
        learnt, trace = routing(network, others), routing(network, shown)
        owned = torch.stack([shares_by_context(side, others.context, task.num_contexts) for side in learnt]).sum(0)
        mixtures = mixture_of_context(owned)  # the same for writing and reading
        dims = _best_fitting_first(owned, mixtures)
        for side, what in zip(trace, ("writing", "reading"), strict=True):
            shares = side[0].permute(1, 3, 0, 2).flatten(0, 1)  # [H V, T, J]
            shares = shares.gather(2, mixtures[:, None, :].expand(-1, shares.shape[1], -1))
            heading = f"{title_of(run.label)} (accuracy {accuracy:.2f}), {what}"
            panels.append(RoutingPanel(heading, shares[dims].numpy(), dims.tolist()))
    if not panels:
        return []
    zone = task.num_contexts * (1 + 2 * task.num_keys)
    tokens = _token_names(shown, task.num_contexts, zone) if task.length <= 40 else None
    about = About(
        f"{_title(task.num_contexts, task.num_keys, task.length)}: which mixture holds which context",
        [f"vocabulary of {task.vocab_size:,} tokens", "the first test sequence"],
        [_training(run) for run, _ in chosen],
    )
    legend = [
        f"colour of a mixture: on {len(others)} other test sequences, each output dim's mixtures are matched one to "
        "one with the contexts whose tokens they serve most",
        "colour of a cell: the mixture with the largest share of the token",
        "rows: output dims, those that separate the contexts best first",
    ]
    if tokens is not None:
        legend.append("A, B, …: context tokens, k: keys, v: values, k?: queries")
    return routing_picture(panels, shown.context[0].tolist(), tokens, zone, about, legend, out / "routing")


def _training(run: TrainingRun) -> str:
    budget = f"learning rate {run.training.lr:g}, seed {run.training.seed}, up to {run.training.steps:,} steps"
    return f"{title_of(run.label)} of width {run.model.hidden_size}, {budget}"


def _best_fitting_first(owned: Tensor, mixtures: Tensor) -> Tensor:
    """Output dims ``[H V]``, sorted by the mean share that contexts have in their own mixtures, the largest first."""
    own = owned.permute(1, 3, 0, 2).flatten(0, 1).gather(2, mixtures.unsqueeze(-1))
    return own.mean((1, 2)).argsort(descending=True)


def _to_compare(runs: Sequence[TrainingRun], directory: Path) -> list[tuple[TrainingRun, float]]:
    """The best runs of both models, with their final accuracies, at the size at which these differ most."""
    sizes: dict[str, dict[str, tuple[TrainingRun, float]]] = {}
    for run in runs:
        accuracy = None if run.variant else _final(run, directory)
        if run.label not in COMPARED or accuracy is None:
            continue
        best = sizes.setdefault(run.size, {})
        if run.label not in best or best[run.label][1] < accuracy:
            best[run.label] = run, accuracy
    both = [best for best in sizes.values() if len(best) == 2]
    if both:
        best = max(both, key=lambda best: best["temporal-swila"][1] - best["swila"][1])
    else:
        best = max(sizes.values(), key=lambda best: max(accuracy for _, accuracy in best.values()), default={})
    return [best[model] for model in COMPARED if model in best]


def _final(run: TrainingRun, directory: Path) -> float | None:
    """Accuracy of the last weights of a run; None if it diverged or has no weights."""
    own = RunDirectory(directory / run.name)
    result = own.result
    if result is None or result["status"] == "diverged" or not (own.path / "checkpoint.pt").exists():
        return None
    return result["final"]


def _task(run: TrainingRun) -> CDAR:
    if not isinstance(run.task, CDAR):
        raise ValueError(f"run must be one of CDAR, got one of {type(run.task).__name__}")
    return run.task


def _token_names(example: Examples, contexts: int, zone: int) -> list[str]:
    """Short names: contexts A, B, ..., keys k1, k2, ..., values v, queries ``k1?``, nothing for empty places."""
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
