"""The pictures of a CDAR experiment: those of recall, and where SwiLA keeps what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from swila.experiments import recall_figures
from swila.experiments.cdar import routing, shares_by_context
from swila.experiments.experiment import runs_in
from swila.experiments.recall import MODELS
from swila.experiments.training_run import TrainingRun
from swila.plots import RoutingPanel, routing_picture
from swila.tasks import CDAR, IGNORE, Examples
from swila.training import RunDirectory


def draw(record: dict[str, Any], out: Path, directory: Path | None) -> list[list[Path]]:
    """Those of every recall experiment, and where SwiLA keeps what if there is a directory with weights."""
    routed = [] if directory is None else draw_routing(runs_in(directory), directory, out)
    return [*recall_figures.draw(record, out), *([routed] if routed else [])]


def draw_routing(runs: Sequence[TrainingRun], directory: Path, out: Path) -> list[Path]:
    """For the best run of each SwiLA model in a directory: which mixture each token of one test sequence went to.

    Which mixture belongs to which context, and which output dims follow the context most (they come first), is found on
    other sequences; rows and colours are the same for writing and reading.
    The weights are the last ones of a run, and so is the accuracy in the title.
    """
    panels: list[RoutingPanel] = []
    task = _task(runs[0])
    test = runs[0].data("test")
    shown, others = test.take(slice(0, 1)), test.take(slice(1, 17))
    for model in ("temporal-swila", "swila"):
        found = [
            (accuracy, run) for run in runs if run.label == model and (accuracy := _final(run, directory)) is not None
        ]
        if not found:
            continue
        accuracy, run = max(found, key=lambda pair: pair[0])
        network = run.load(directory / run.name)
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
    title = "Which mixture holds which context"
    return routing_picture(panels, shown.context[0].tolist(), tokens, zone, title, out / "routing")


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
