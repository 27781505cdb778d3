"""Language models small enough to test with."""

import torch

from swila import SwiLAConfig, SwiLAForCausalLM
from swila.models.language.presets import PAPER

VOCABULARY = 64
NAMES = PAPER


def tiny(name, seed=0, **changes):
    """One of the paper's thirteen in small, with weights large enough that it prefers some tokens clearly."""
    torch.manual_seed(seed)
    config = SwiLAConfig.preset(
        f"{name}-tiny", **{"vocab_size": VOCABULARY, "intermediate_size": 64, "initializer_range": 0.05, **changes}
    )
    return SwiLAForCausalLM(config).eval()


def tokens(*shape, seed=0):
    """Random tokens, without 0, which may be padding."""
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
