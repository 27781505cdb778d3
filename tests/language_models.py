"""Language models small enough to test with."""

import torch

from swila import SwiLAConfig, SwiLAForCausalLM
from swila.models.language.presets import PAPER

VOCABULARY = 64
NAMES = PAPER


def tiny(name, seed=0, **changes):
    """One of the paper's thirteen in small, with weights large enough that it prefers some tokens clearly."""
    torch.manual_seed(seed)
    large = {"initializer_range": 0.05, "conv_initializer_range": None}
    config = SwiLAConfig.preset(
        f"{name}-tiny", **{"vocab_size": VOCABULARY, "intermediate_size": 64, **large, **changes}
    )
    return SwiLAForCausalLM(config).eval()


def tokens(*shape, seed=0):
    """Random tokens, without 0, which may be padding."""
    drawn = torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return drawn.to(torch.get_default_device())


def tolerance(times=1):
    """Of hidden states and logits of order 1 in float32; kernels round what matrix units multiply to tf32."""
    return {"rtol": 0, "atol": times * (5e-4 if torch.get_default_device().type == "cuda" else 1e-5)}
