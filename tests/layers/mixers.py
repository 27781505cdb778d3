"""Every sequence layer in small, with all of its options turned on somewhere."""

import torch

from swila.layers import make_mixer

HIDDEN = 16
MIXERS = {
    "swila": ("swila", {"num_heads": 2, "num_mixtures": 3}),
    "swila-temporal": ("swila", {"num_heads": 2, "temporal": True, "temporal_bias": -1.0, "conv_size": 2}),
    "swila-gated": (
        "swila",
        {"num_heads": 2, "decay": "key", "use_output_gate": True, "router_projection": "low-rank:3"},
    ),
    "swila-value": ("swila", {"num_heads": 1, "decay": "value", "decay_order": "post", "use_short_conv": False}),
    "swila-all": (
        "swila",
        {
            "num_heads": 2,
            "expand_k": 0.5,
            "expand_v": 1.0,
            "temporal": True,
            "decay": "head",
            "router_projection": "swiglu:5",
            "beta_projection": "swiglu:4",
            "decay_projection": "low-rank:2",
            "conv_bias": True,
            "normalize": False,
        },
    ),
    "swila-low-rank": (
        "swila",
        {
            "num_heads": 2,
            "temporal": True,
            "decay": "key",
            "router_projection": "low-rank:3",
            "beta_projection": "low-rank:5",
            "use_output_gate": True,
        },
    ),
    "swila-input-conv": ("swila", {"num_heads": 1, "temporal": True, "conv_size": 2, "conv_on": "input"}),
    "swila-one": ("swila", {"num_heads": 2, "num_mixtures": 1, "head_dim": 4}),
    "deltanet": ("deltanet", {"num_heads": 2, "expand_v": 2.0, "use_output_gate": True}),
    "deltanet-no-conv": ("deltanet", {"num_heads": 2, "use_short_conv": False}),
    "gated-deltanet": ("gated-deltanet", {"num_heads": 2, "head_dim": 6}),
    "kda": ("kda", {"num_heads": 2, "expand_v": 0.5}),
    "mom": ("mom", {"num_heads": 2, "head_dim": 4, "num_memories": 3, "top_k": 2}),
    "mom-gated": (
        "mom",
        {"num_heads": 1, "head_dim": 4, "decay": True, "shared_memory": True, "use_output_gate": True},
    ),
    "attention": ("attention", {"num_heads": 4, "num_kv_heads": 2}),
    "attention-conv": ("attention", {"num_heads": 2, "use_short_conv": True, "conv_size": 2, "qk_norm": True}),
    "attention-input-conv": ("attention", {"num_heads": 2, "use_short_conv": True, "conv_on": "input"}),
    "fox": ("fox", {"num_heads": 2, "use_output_gate": True, "use_short_conv": True, "qkv_bias": True}),
}


def build(name, **more):
    """The layer in float64."""
    mixer, options = MIXERS[name]
    return make_mixer(mixer, HIDDEN, **{**options, **more}).double()


def random(*shape, seed=0):
    """Normal numbers in float64, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(torch.get_default_device())


def tokens(B, T, seed=0):
    """Hidden states ``[B, T, HIDDEN]``."""
    return random(B, T, HIDDEN, seed=seed)
