"""The paper's language models by name, as fields of :class:`SwiLAConfig`.

A name consists of an architecture and a size: ``temporal-swila-374m``. Numbers are those of the paper where it gives
them. It does not give the rank of SwiLA's projections; we use the width of a head. It does not give the epsilon of the
output norms either; we use 1e-6 times the width of a head, as flash-linear-attention's models in effect do.
Feed-forward widths are chosen so that models of one size have equal parameter counts (within 0.3 %), head counts and
widths so that they have equal recurrent states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """Dimensions that the models of one size share.

    Attributes:
        summary: Where the size is used.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Number of blocks.
        heads: Number of heads of recurrent layers, and of attention in hybrids and FoX.
        head_dim: Dimensions of a head with one regressor. Half of it with 4 mixtures, for the same state size.
        mom: Number of heads and head dimensions of the memories of DN-MoM.
        widths: Widths of the feed-forward layers by architecture. Other architectures have no preset of this size.
    """

    summary: str
    hidden_size: int
    num_hidden_layers: int
    heads: int
    head_dim: int
    mom: tuple[int, int]
    widths: dict[str, int]


@dataclass(frozen=True)
class Architecture:
    """An architecture of the paper.

    Attributes:
        title: Name in the paper.
        mixer: Name of the mixer.
        options: Options of the mixer that do not depend on the size.
        hybrid: Whether every fourth layer is softmax attention.
    """

    title: str
    mixer: str
    options: dict[str, Any]
    hybrid: bool = False


ARCHITECTURES = {
    "transformer": Architecture("Transformer++", "attention", {}),
    "fox": Architecture("FoX", "fox", {}),
    "deltanet": Architecture("DeltaNet", "deltanet", {}),
    "gdn": Architecture("GDN", "gated-deltanet", {}),
    "kda": Architecture("KDA", "kda", {}),
    "dn-mom": Architecture("DN-MoM", "mom", {}),
    "gdn-mom": Architecture("GDN-MoM", "mom", {"decay": True, "use_output_gate": True}),
    "swila": Architecture("SwiLA", "swila", {"balance_marginal": 1e-3}),
    "temporal-swila": Architecture("Temporal SwiLA", "swila", {"temporal": True, "balance_marginal": 5e-4}),
    "gated-swila": Architecture("Gated SwiLA", "swila", {"decay": "key", "balance_marginal": 5e-4}),
    "gated-temporal-swila": Architecture(
        "Gated Temporal SwiLA", "swila", {"decay": "key", "temporal": True, "balance_marginal": 2.5e-4}
    ),
    "hybrid-gdn": Architecture("Hybrid GDN", "gated-deltanet", {}, hybrid=True),
    "hybrid-temporal-swila": Architecture(
        "Hybrid Temporal SwiLA", "swila", {"temporal": True, "balance_marginal": 5e-4}, hybrid=True
    ),
    # in the ablation, in addition to SwiLA and Temporal SwiLA
    "swila-unbalanced": Architecture("SwiLA, no load balancing", "swila", {}),
    "temporal-swila-unbalanced": Architecture("Temporal SwiLA, no load balancing", "swila", {"temporal": True}),
    "swila-16": Architecture("SwiLA, 16 mixtures", "swila", {"num_mixtures": 16, "balance_marginal": 1e-3}),
    "temporal-swila-16": Architecture(
        "Temporal SwiLA, 16 mixtures", "swila", {"num_mixtures": 16, "temporal": True, "balance_marginal": 5e-4}
    ),
}
PAPER = list(ARCHITECTURES)[:13]

SIZES = {
    "tiny": Size("for trials on a CPU", 128, 4, 2, 64, (2, 32), dict.fromkeys(PAPER, 384)),
    "small": Size(
        "for one GPU in minutes",
        512,
        12,
        4,
        128,
        (1, 128),
        {
            "transformer": 1024,
            "fox": 1024,
            "deltanet": 1024,
            "gdn": 848,
            "kda": 848,
            "dn-mom": 1280,
            "gdn-mom": 752,
            "swila": 1168,
            "temporal-swila": 1008,
            "gated-swila": 1104,
            "gated-temporal-swila": 928,
            "hybrid-gdn": 896,
            "hybrid-temporal-swila": 1008,
        },
    ),
    "115m": Size(
        "of the ablation",
        768,
        12,
        6,
        128,
        (2, 96),
        {
            "swila": 1680,
            "temporal-swila": 1424,
            "swila-unbalanced": 1680,
            "temporal-swila-unbalanced": 1424,
            "swila-16": 1968,
            "temporal-swila-16": 1840,
        },
    ),
    "374m": Size(
        "of the paper's language models",
        1024,
        24,
        8,
        128,
        (2, 128),
        {
            "transformer": 2816,
            "fox": 2816,
            "deltanet": 2816,
            "gdn": 2464,
            "kda": 2640,
            "dn-mom": 3326,
            "gdn-mom": 2288,
            "swila": 3312,
            "temporal-swila": 2960,
            "gated-swila": 3248,
            "gated-temporal-swila": 2896,
            "hybrid-gdn": 2560,
            "hybrid-temporal-swila": 2928,
        },
    ),
    "1.3b": Size(
        "of the throughput study",
        2048,
        24,
        16,
        128,
        (4, 128),
        {
            "transformer": 5632,
            "gdn": 4928,
            "hybrid-gdn": 5104,
            "swila": 6800,
            "temporal-swila": 6128,
            "hybrid-temporal-swila": 6000,
        },
    ),
}


def preset_names() -> list[str]:
    """Return all names, small sizes first."""
    return [f"{architecture}-{name}" for name, size in SIZES.items() for architecture in size.widths]


def get_preset(name: str, num_hidden_layers: int | None = None) -> dict[str, Any]:
    """Return the fields of a preset, optionally with another depth; raise ValueError if there is no such preset."""
    architecture, _, size_name = name.lower().rpartition("-")
    if size_name not in SIZES or architecture not in SIZES[size_name].widths:
        sizes = "; ".join(f"{size}: {', '.join(SIZES[size].widths)}" for size in SIZES)
        raise ValueError(
            f"preset must be ARCHITECTURE-SIZE, such as temporal-swila-374m, got {name!r}. Available: {sizes}"
        )
    size, model = SIZES[size_name], ARCHITECTURES[architecture]
    options = {model.mixer: _mixer_options(model, size)}
    depth = size.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
    fields: dict[str, Any] = {
        "hidden_size": size.hidden_size,
        "num_hidden_layers": depth,
        "intermediate_size": size.widths[architecture],
        "mixer": model.mixer,
        "mixer_options": options,
    }
    if model.hybrid:  # every fourth layer: the paper's 4, 8, ..., counted from 0
        fields["attention_layers"] = list(range(3, depth, 4))
        options["attention"] = {"num_heads": size.heads}
    return fields


def _mixer_options(model: Architecture, size: Size) -> dict[str, Any]:
    if model.mixer == "attention":
        return {"num_heads": 2 * size.heads}
    if model.mixer == "fox":
        return {"num_heads": size.heads}
    if model.mixer == "mom":
        heads, head_dim = (size.heads, size.head_dim // 2) if model.options.get("decay") else size.mom
        memories = {"num_memories": 3, "shared_memory": True}
        return {"num_heads": heads, "head_dim": head_dim, "norm_eps": _epsilon(head_dim), **memories, **model.options}
    options: dict[str, Any] = {"num_heads": size.heads, "head_dim": size.head_dim}
    if model.mixer == "swila":
        J = model.options.get("num_mixtures", 4)
        options |= {"num_mixtures": J, "head_dim": size.head_dim // {4: 2, 16: 4}[J]}
        low_rank = f"low-rank:{options['head_dim']}"
        options |= {"router_projection": low_rank, "beta_projection": low_rank}
        if "decay" in model.options:
            options["decay_projection"] = low_rank
    return {**options, "norm_eps": _epsilon(options["head_dim"]), **model.options}


def _epsilon(head_dim: int) -> float:
    """Return the epsilon of the output norm: that of 1e-6 if queries were multiplied by K^-1/2, which ours are not."""
    return round(1e-6 * head_dim, 9)
