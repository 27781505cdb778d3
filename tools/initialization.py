"""Initial weights compared on real text: models trained with each, otherwise equal.

The differences are those between our models and flash-linear-attention's: short convolutions, epsilon of the output
norm, embeddings, and output projections.

    python tools/initialization.py TOKENS --recipe gdn-small --recipe temporal-swila-small --device cuda --out FILE
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
from swila.pretraining.recipe import Recipe
from swila.pretraining.recipes import get_recipe
from swila.pretraining.settings import change
from swila.training.metrics import METRICS, read_metrics

UNIFORM, NORMAL = "model.conv_initializer_range=none", "model.conv_initializer_range=0.02"
CHANGES = {  # settings, and the epsilon of the output norm
    "uniform convolutions, epsilon 1e-5": ([UNIFORM], "1e-5"),
    "convolutions N(0, 0.02²), epsilon 1e-5": ([NORMAL], "1e-5"),
    "convolutions N(0, 0.02²), epsilon K · 1e-6": ([NORMAL], None),
    "uniform convolutions, epsilon 1e-5, output projections / √(2 · layers)": (
        [UNIFORM, "model.rescale_residual=true"],
        "1e-5",
    ),
    "uniform convolutions, epsilon 1e-5, embeddings N(0, 1)": (
        [UNIFORM, "model.embedding_initializer_range=1.0"],
        "1e-5",
    ),
}


def with_initialization(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe with one of the initialisations."""
    settings, epsilon = CHANGES[name]
    changes = [] if epsilon is None else [f"model.mixer_options.{recipe.model.mixer}.norm_eps={epsilon}"]
    return change(recipe, [*settings, *changes])


def main() -> None:
    """Train every model with every initialisation and seed, and write the curves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", action="append", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args()
    record: dict[str, Any] = {
        "environment": environment(), "device": given.device, "steps": given.steps, "runs": [],
    }  # fmt: skip
    common = [f"schedule.steps={given.steps}", f"schedule.warmup_steps={given.steps // 10}", *given.settings]
    common += [f"validation.every={given.steps // 4}", "checkpoints.every=1000000"]
    for seed in range(given.seeds):
        for recipe in given.recipe:
            for name in CHANGES:
                resolved = with_initialization(change(get_recipe(recipe), [*common, f"seed={seed}"]), name)
                folder = Path(tempfile.mkdtemp())
                pretrain(resolved, given.tokens, folder / "run", given.device)
                lines = read_metrics(folder / "run" / METRICS)
                run = {"recipe": recipe, "initialization": name, "seed": seed, "tokens": resolved.tokens}
                for part in ("train", "validation"):
                    run[part] = [[line["step"], line[f"{part}/loss"]] for line in lines if f"{part}/loss" in line]
                run["train"] = [point for point in run["train"] if point[0] % max(given.steps // 40, 1) == 0]
                record["runs"].append(run)
                given.out.write_text(json.dumps(record, indent=1) + "\n")
                print(seed, recipe, name, run["validation"], flush=True)
                shutil.rmtree(folder)
                torch._dynamo.reset()


if __name__ == "__main__":
    main()
