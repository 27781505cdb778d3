"""The table of RegBench, and the n-grams that models are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from swila.experiments.choice import ChosenRow, choose_by_validation, grouped
from swila.experiments.record import Metrics, RunRecord
from swila.experiments.regbench.presets import Preset
from swila.tasks import IGNORE, legality, ngram_distribution, total_variation

ORDERS = (1, 2, 3, 4)  # of the n-grams


class RegBenchRow(ChosenRow):
    """The runs of one model and training set.

    Attributes:
        train_examples: Number of training automata.
    """

    train_examples: int


def summarize(runs: Sequence[RunRecord]) -> list[RegBenchRow]:
    """A row for each model and training set."""
    groups = grouped(runs, lambda run: (run["model"], run["train_examples"]))
    return [
        {**choose_by_validation(members, f"{model} {count}"), "train_examples": count}
        for (model, count), members in groups.items()
    ]


def yardsticks(preset: Preset) -> dict[str, Metrics]:
    """Accuracy and total variation of n-grams on the test problems; each is counted on the problem's own strings."""
    test = preset.task.examples(preset.held_out, "test")
    scored = test.labels != IGNORE
    found = {}
    for order in ORDERS:
        law = ngram_distribution(test.inputs, order, preset.task.vocab_size, preset.task.separator)
        found[f"{order}-gram"] = {
            "accuracy": legality(law.argmax(-1), test.legal)[scored].double().mean().item(),
            "tv": total_variation(law, test.legal)[scored].double().mean().item(),
        }
    return found
