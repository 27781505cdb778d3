"""Initial weights compared on real text: models of one size trained with each, otherwise equal.

Needs a GPU. The differences are those between our models and flash-linear-attention's: short convolutions, epsilon of
the output norm, embeddings, and output projections.

    python tools/initialization.py TOKENS --out results/initialization.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from swila.environment import environment
from swila.pretraining.engine import pretrain
from swila.pretraining.recipes import get_recipe
from swila.pretraining.settings import change
from swila.training.metrics import METRICS, read_metrics

CHANGES = {
    "ours": [],
    "convolutions N(0, 0.02²)": ["model.conv_initializer_range=0.02"],
    "convolutions N(0, 0.02²), its epsilon": ["model.conv_initializer_range=0.02", "EPS"],
    "rescaled residual": ["model.rescale_residual=true"],
    "embeddings N(0, 1)": ["model.embedding_initializer_range=1.0"],
}
MIXERS = {"gdn-small": "gated-deltanet", "temporal-swila-small": "swila"}
HEAD_DIM = 128


def settings_of(recipe: str, name: str, steps: int, batch_size: int) -> list[str]:
    """Return the changes of a recipe's fields for one initialisation."""
    eps = f"model.mixer_options.{MIXERS[recipe]}.norm_eps={HEAD_DIM * 1e-6}"
    return [
        f"schedule.steps={steps}",
        f"schedule.warmup_steps={steps // 10}",
        f"data.batch_size={batch_size}",
        f"validation.every={steps // 4}",
        "validation.sequences=128",
        "checkpoints.every=1000000",
        *(eps if text == "EPS" else text for text in CHANGES[name]),
    ]


def main() -> None:
    """Train every model with every initialisation and write the curves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--recipe", action="append", choices=list(MIXERS))
    given = parser.parse_args()
    record: dict[str, Any] = {"environment": environment(), "device": "cuda", "steps": given.steps, "runs": []}
    for recipe in given.recipe or MIXERS:
        for name in CHANGES:
            resolved = change(get_recipe(recipe), settings_of(recipe, name, given.steps, given.batch_size))
            folder = Path(tempfile.mkdtemp())
            pretrain(resolved, given.tokens, folder / "run", "cuda")
            lines = read_metrics(folder / "run" / METRICS)
            run = {
                "recipe": recipe,
                "initialization": name,
                "tokens": resolved.tokens,
                "train": [[line["step"], line["train/loss"]] for line in lines if "train/loss" in line],
                "validation": [[line["step"], line["validation/loss"]] for line in lines if "validation/loss" in line],
            }
            record["runs"].append(run)
            given.out.write_text(json.dumps(record, indent=2) + "\n")
            print(recipe, name, run["validation"], flush=True)
            shutil.rmtree(folder)
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
