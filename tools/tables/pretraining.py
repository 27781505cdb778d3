"""Tables of pretraining: throughput, memory, small runs, flash-linear-attention's model, and initial weights."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown

from swila.models.language.presets import ARCHITECTURES


def throughput_table(record: dict[str, Any]) -> str:
    """Markdown for ``swila bench pretraining``: the engine beside two bare loops."""
    rows = []
    for row in record["recipes"]:
        engine = row["engine"]
        cells = [f"{engine['tokens_per_second']:,.0f}", f"{engine['mfu']:.1%}", f"{engine['memory_gb']:.1f}"]
        for weights in ("bfloat16", "float32"):
            bare = row["bare"][weights]
            ratios = (
                engine["tokens_per_second"] / bare["tokens_per_second"],
                bare["milliseconds"] / engine["milliseconds"],
            )
            cells += [f"{bare['tokens_per_second']:,.0f}", " · ".join(_ratio(ratio) for ratio in ratios)]
        rows.append((row["recipe"], *cells))
    first = record["recipes"][0]
    return markdown(
        "l" + "r" * 7,
        ["recipe", "`swila pretrain`, tokens/s", "MFU", "GB", "bare loop, bfloat16", "ratio", "bare loop, float32",
         "ratio"],
        rows,
        f"Training on one GPU, {first['batch_size']} sequences of {first['length']:,} tokens an update, "
        f"{record['updates']} updates. Ratios are the engine's throughput over that of the loop: by the mean time of "
        "an update · by the median; bold below 0.97. The bare loops have compiled blocks, fused AdamW, clipping, and "
        "one batch that is on the GPU. The first has weights and moments in bfloat16. The second has them in float32, "
        "as the engine does, and computes under autocast. MFU counts matrix products, recurrences, attention and "
        "convolutions, three times the forward pass, over 989 TFLOP/s. All models use our kernels, or torch's "
        f"attention. Other processes on the GPU were stopped during the timed updates. {conditions(record)}.",
    )  # fmt: skip


def _ratio(ratio: float) -> str:
    return f"**{ratio:.3f}**" if ratio < 0.97 else f"{ratio:.3f}"


def plan_table(record: dict[str, Any]) -> str:
    """Markdown for the plan's estimate of memory beside the measured peak."""
    rows = [
        (row["recipe"], f"{row['planned_gb']:.1f}", f"{row['engine']['memory_gb']:.1f}", f"{_excess(row):+.1%}")
        for row in record["recipes"]
    ]
    return markdown(
        "lrrr",
        ["recipe", "planned GB", "measured GB", "difference"],
        rows,
        f"Peak memory of one GPU, with the micro-batch of the table above. {conditions(record)}.",
    )


def _excess(row: dict[str, Any]) -> float:
    return row["planned_gb"] / row["engine"]["memory_gb"] - 1


def small_runs_table(record: dict[str, Any]) -> str:
    """Markdown for the runs of size ``small``: losses, and a text that the exported model continued."""
    rows, texts = [], []
    for run in record["runs"].values():
        tokens = run["step"] * run["tokens_per_step"]
        loss = run["curves"]["train/loss"][-1][1]
        rows.append(
            (_title(run["recipe"]), f"{run['step']:,}", f"{tokens / 1e6:.1f} M", f"{loss:.3f}",
             f"{run['result']['best']:.1f}")
        )  # fmt: skip
        texts.append(f"{_title(run['recipe'])}: “{run['sample']}”")
    settings = next(iter(record["runs"].values()))["config"]
    return markdown(
        "lrrrr",
        ["model", "updates", "tokens", "training loss", "validation perplexity"],
        rows,
        f"One seed each, learning rate {settings['optimizer']['lr']:g}, not tuned for either model. The difference of "
        "two single runs does not say which model is better. The exported models, greedily from “The history of”: "
        f"{'; '.join(texts)}. {record['note']} {conditions(record)}.",
    )


def _title(recipe: str) -> str:
    return ARCHITECTURES[recipe.rpartition("-")[0]].title


def fla_table(record: dict[str, Any]) -> str:
    """Markdown for our Gated DeltaNet beside flash-linear-attention's: logits, gradients, curves and the start."""
    logits, gradients, curves = record["logits"], record["gradients"], record["curves"]
    differences = [abs(a - b) for a, b in zip(curves["ours"], curves["theirs"], strict=True)]
    last = {name: fmean(curve[-50:]) for name, curve in curves.items()}
    rows = [
        ("logits, relative error to ours in float32", f"{logits['ours_to_float32']:.3f}",
         f"{logits['theirs_to_float32']:.3f}"),
        ("gradients, relative error to ours in float32", f"{gradients['ours']['all']:.3f}",
         f"{gradients['theirs']['all']:.3f}"),
        (f"training loss, mean of updates {len(differences) - 49} to {len(differences)}", f"{last['ours']:.3f}",
         f"{last['theirs']:.3f}"),
    ]  # fmt: skip
    return markdown(
        "lrr",
        [f"{record['preset']}, the same weights", "ours", "flash-linear-attention's"],
        rows,
        f"Both compute in bfloat16 under autocast, from flash-linear-attention's initial weights. The logits of the "
        f"two differ by {logits['ours_to_theirs']:.3f}. Losses of {len(differences)} updates on the same Wikipedia "
        f"text ({record['batch_size']} × {record['length']:,} tokens each, learning rate 3e-4): "
        f"the curves differ by {fmean(differences):.4f} on average and {max(differences):.3f} at most. "
        f"{conditions(record)}.",
    )


def start_table(record: dict[str, Any]) -> str:
    """Markdown for eight updates on a fixed batch of random tokens, by initial weights."""
    names = {"theirs": "flash-linear-attention's model, its own"}
    rows = [
        (names.get(name, name), f"{losses[0]:.2f}", f"{losses[4]:.2f}", f"{losses[8]:.2f}")
        for name, losses in record["start"].items()
    ]
    return markdown(
        "lrrr",
        [f"{record['preset']}, initial weights", "loss before", "after 4 updates", "after 8 updates"],
        rows,
        "One fixed batch of 8 × 2,048 random tokens, AdamW with learning rate 1e-4, everything in bfloat16. The "
        f"epsilon is that of the output norm. {conditions(record)}.",
    )


def initialization_table(record: dict[str, Any]) -> str:
    """Markdown for initial weights compared on real text: validation losses during training, by model."""
    steps = [step for step, _ in record["runs"][0]["validation"]]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        groups.setdefault((run["recipe"], run["initialization"]), []).append(run)
    rows = []
    for (recipe, name), runs in groups.items():
        means = [fmean(run["validation"][i][1] for run in runs) for i in range(len(steps))]
        rows.append((recipe, name, *(f"{mean:.3f}" for mean in means)))
    seeds = len({run["seed"] for run in record["runs"]})
    counted = "one seed" if seeds == 1 else f"means of {seeds} seeds"
    return markdown(
        "ll" + "r" * len(steps),
        ["recipe", "initial weights", *(f"after {step} updates" for step in steps)],
        rows,
        f"Validation loss in nats per token on Wikipedia text, {counted}, {record['runs'][0]['tokens'] / 1e6:.1f} M "
        f"tokens a run, learning rate of the recipe for all. {conditions(record)}.",
    )
