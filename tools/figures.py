"""``python -m tools.figures``: draw the figures of README and docs from the results files.

The pictures of the routing are not among them: they need the weights of a run. ``swila run cdar --preset tiny`` draws
``cdar-tiny-routing.png`` as ``routing.png``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from swila.benchmarks.throughput.figures import draw as draw_throughput
from swila.benchmarks.throughput.figures import is_throughput
from swila.experiments.registry import EXPERIMENTS
from swila.pretraining.figures import draw as draw_pretraining

# results file -> figure of the experiment, of pretraining or of a benchmark -> image of the docs
IMAGES = {
    "softmax-regression": {
        "state-size": "softmax-regression-state-size",
        "all-configurations": "softmax-regression-all-configurations",
    },
    "regbench": {
        "accuracy": "regbench-accuracy",
        "total-variation": "regbench-total-variation",
        "progress": "regbench-progress",
    },
    "cdar-paper": {"accuracy": "cdar-paper-accuracy", "state-size": "cdar-paper-state-size"},
    "cdar-tiny": {"accuracy": "cdar-tiny-accuracy"},
    "cdar-tiny-sizes": {"state-size": "cdar-tiny-state-size"},
    "pretraining-small": {
        "loss": "pretraining-small-loss",
        "routing-layers-temporal-swila-small": "pretraining-small-routing",
    },
    "throughput-training": {"throughput-training": "throughput-training"},
    "throughput-generation": {"throughput-generation": "throughput-generation"},
}
FROM_WEIGHTS = ("cdar-tiny-routing", "cdar-paper-routing")


def images(root: Path) -> dict[str, dict[str, str]]:
    """Return the entries of :data:`IMAGES` whose results a repository has."""
    return {name: found for name, found in IMAGES.items() if (root / "results" / f"{name}.json").exists()}


def draw(root: Path) -> list[Path]:
    """Draw all images of a repository from its results files; returns their paths."""
    written = []
    for results, found in images(root).items():
        record = json.loads((root / "results" / f"{results}.json").read_text())
        with tempfile.TemporaryDirectory() as directory:
            if record.get("kind") == "pretraining":
                draw_pretraining(record, Path(directory))
            elif is_throughput(record):
                draw_throughput(record, Path(directory))
            else:
                EXPERIMENTS[record["experiment"]].draw(record, Path(directory), None)
            for figure, image in found.items():
                target = root / "docs" / "images" / f"{image}.png"
                shutil.copyfile(Path(directory) / f"{figure}.png", target)
                written.append(target)
    return written


if __name__ == "__main__":
    for path in draw(Path()):
        sys.stdout.write(f"{path}\n")
