"""The models of the efficiency figures, and as their baseline flash-linear-attention's own Gated DeltaNet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from swila.layers import fla
from swila.layers.delta_net import DeltaRuleMixer
from swila.models import SwiLAConfig, SwiLAForCausalLM
from swila.models.language.presets import get_preset

MODELS = ("transformer", "gdn", "hybrid-gdn", "swila", "temporal-swila", "hybrid-temporal-swila")
BASELINE = "fla-gdn"
# flash-linear-attention's loss sums the gradient of the head's weight by float32 products, which torch computes without
# tensor cores unless it is allowed to round their operands to TensorFloat-32
TF32_BASELINE = "fla-gdn-tf32"
BASELINES = (BASELINE, TF32_BASELINE)

# prefixes and names of flash-linear-attention's parameters -> those of our model
_OURS = {
    "model.embeddings.": "model.embed_tokens.",
    ".attn_norm.": ".mixer_norm.",
    ".attn.A_log": ".mixer.decay.A_log",
    ".attn.dt_bias": ".mixer.decay.dt_bias",
    ".attn.a_proj.": ".mixer.decay.proj.",
    ".attn.": ".mixer.",
    ".mlp.gate_proj.": ".mlp.gate.",
    ".mlp.up_proj.": ".mlp.up.",
    ".mlp.down_proj.": ".mlp.down.",
}


def check_name(model: str, size: str) -> None:
    """Raise ValueError unless there is a model of this architecture and size."""
    get_preset(preset_of(model, size))


def preset_of(model: str, size: str) -> str:
    """Return the preset with the dimensions of a model: its own, or for the baseline that of our GDN."""
    return f"{'gdn' if model in BASELINES else model}-{size}"


def config_of(model: str, size: str, depth: int | None = None) -> SwiLAConfig:
    """Return the configuration of a model, or of one with fewer layers; tiny ones have a small vocabulary."""
    changes = {} if depth is None else {"num_hidden_layers": depth}
    if size == "tiny":
        changes["vocab_size"] = 512
    return SwiLAConfig.preset(preset_of(model, size), **changes)


def make_model(
    model: str, size: str, device: str, dtype: torch.dtype, depth: int | None = None, kernel: str = "auto"
) -> Any:
    """Return a model in training mode, with random weights in this dtype.

    Args:
        model: One of :data:`MODELS` or :data:`BASELINES`.
        size: Size of the preset.
        device: Device of the weights.
        dtype: Dtype of all weights.
        depth: Number of layers instead of the preset's.
        kernel: Backend of Gated DeltaNet's layers in our models: ``"auto"`` is our own operation, ``"fla"``
            flash-linear-attention's kernel.
    """
    config = config_of(model, size, depth)
    torch.manual_seed(0)
    with torch.device(device):
        if model in BASELINES:
            return fla_model(config).to(dtype).train()
        made = SwiLAForCausalLM(config).to(dtype).train()
    for block in made.model.layers:
        if isinstance(block.mixer, DeltaRuleMixer):
            block.mixer.backend = kernel
    return made


def fla_model(ours: SwiLAConfig) -> Any:
    """Return flash-linear-attention's GDN with the dimensions of ours, its own initial weights and its fused layers.

    Norms, SwiGLU and short convolutions are fused by default. The head's loss is not: the fused linear cross entropy,
    which does not store all logits, has to be asked for.
    """
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

    options = ours.options_of("gated-deltanet")
    config = GatedDeltaNetConfig(
        hidden_size=ours.hidden_size,
        num_hidden_layers=ours.num_hidden_layers,
        intermediate_size=ours.intermediate_size,
        vocab_size=ours.vocab_size,
        num_heads=options["num_heads"],
        head_dim=options["head_dim"],
        expand_v=1.0,
        use_gate=True,
        fuse_norm=True,
        fuse_swiglu=True,
        fuse_cross_entropy=False,
        fuse_linear_cross_entropy=True,
        use_cache=False,
    )
    return GatedDeltaNetForCausalLM(config)


def kernel_of(model: str) -> str:
    """Return whose kernel the Gated DeltaNet layers of a model use in training: ``"fla"`` if it is installed."""
    return "fla" if "gdn" in model and fla.unusable() is None else "auto"


@contextmanager
def products_of(model: str) -> Iterator[None]:
    """Within this context, float32 matrix products are those of a model: in TensorFloat-32 for one of the baselines."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if model == TF32_BASELINE else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    """Return the loss of predicting each token of ``[B, T]`` from those before it, alike for all models."""
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def our_name(name: str) -> str:
    """Return the name in our model of a parameter of flash-linear-attention's ``GatedDeltaNetForCausalLM``."""
    for theirs, ours in _OURS.items():
        if theirs in name:
            return name.replace(theirs, ours)
    return name


def our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return flash-linear-attention's weights under our names; its convolutions are ``[C, 1, W]``, ours ``[C, W]``."""
    return {our_name(name): w.squeeze(1) if "conv1d" in name else w for name, w in theirs.items()}
