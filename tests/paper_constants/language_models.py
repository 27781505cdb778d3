"""Rows of the language models and of their pretraining."""

from paper_constants.rows import APP_ABLATION, APP_GATED, APP_LAYER, APP_LM, APP_THROUGHPUT, OPEN, SECTION_53, rows

THIRTEEN = (
    "transformer", "deltanet", "gdn", "dn-mom", "gdn-mom", "kda", "fox", "swila", "temporal-swila", "gated-swila",
    "gated-temporal-swila", "hybrid-gdn", "hybrid-temporal-swila",
)  # fmt: skip
SWILA_374M = ("swila-374m", "temporal-swila-374m", "gated-swila-374m", "gated-temporal-swila-374m")
SIX_1_3B = ("transformer", "gdn", "hybrid-gdn", "swila", "temporal-swila", "hybrid-temporal-swila")
ABLATION = (
    "swila", "temporal-swila", "swila-unbalanced", "temporal-swila-unbalanced", "swila-16", "temporal-swila-16"
)  # fmt: skip

LANGUAGE_MODELS = [
    # Language models
    *rows(
        f"{SECTION_53}; {APP_LM}",
        [f"{name}-374m" for name in THIRTEEN],
        config__num_hidden_layers=24,
        config__hidden_size=1024,
        config__vocab_size=32_000,
        config__max_position_embeddings=4096,
    ),
    *rows(
        OPEN,
        [f"{name}-374m" for name in THIRTEEN],
        config__norm_eps=1e-6,
        config__initializer_range=0.02,
        config__tie_word_embeddings=False,
        config__hidden_act="silu",
    ),
    *rows(APP_LM, "transformer-374m", mixer__num_heads=16, mixer__head_dim=64, mixer__num_kv_heads=16),
    *rows(OPEN, "transformer-374m", mixer__rope_theta=10_000.0),
    *rows(
        APP_LM,
        ["deltanet-374m", "gdn-374m", "kda-374m"],
        mixer__num_heads=8,
        mixer__head_k_dim=128,
        mixer__head_v_dim=128,
    ),
    *rows(APP_LM, "fox-374m", mixer__num_heads=8, mixer__head_dim=128, mixer__rope_theta=None),
    *rows(
        APP_LM,
        SWILA_374M,
        mixer__num_heads=8,
        mixer__num_mixtures=4,
        mixer__head_k_dim=64,
        mixer__head_v_dim=64,
        mixer__router_noise=False,
        mixer__temporal_noise=False,
        mixer__normalize=True,
    ),
    *rows(f"{APP_LM}: load balancing", "swila-374m", mixer__balance_marginal=1e-3, mixer__balance_conditional=1e-3),
    *rows(
        f"{APP_LM}: load balancing",
        ["temporal-swila-374m", "gated-swila-374m", "hybrid-temporal-swila-374m"],
        mixer__balance_marginal=5e-4,
        mixer__balance_conditional=5e-4,
    ),
    *rows(
        f"{APP_LM}: load balancing",
        "gated-temporal-swila-374m",
        mixer__balance_marginal=2.5e-4,
        mixer__balance_conditional=2.5e-4,
    ),
    *rows(APP_LM, ["swila-374m", "gated-swila-374m"], mixer__temporal=False),
    *rows(APP_LM, ["temporal-swila-374m", "gated-temporal-swila-374m"], mixer__temporal=True),
    *rows(APP_LM, ["swila-374m", "temporal-swila-374m"], mixer__decay_kind=None),
    *rows(
        f"{APP_LM}; {APP_GATED}: one gate per key dimension",
        ["gated-swila-374m", "gated-temporal-swila-374m"],
        mixer__decay_kind="key",
    ),
    *rows(
        f"{OPEN}: eq. (pre-decay) is that of the language models",
        ["gated-swila-374m", "gated-temporal-swila-374m"],
        mixer__decay_order="pre",
    ),
    *rows(OPEN, ["temporal-swila-374m", "gated-temporal-swila-374m"], mixer__temporal_bias=0.0),
    *rows(
        f"{APP_LAYER}: low-rank projections; the rank, that of a head, is not in the paper",
        SWILA_374M,
        mixer__key_router__0__out_features=64,
        mixer__query_router__0__out_features=64,
        mixer__b_proj__0__out_features=64,
    ),
    *rows(
        f"{OPEN}: rank of the decays",
        ["gated-swila-374m", "gated-temporal-swila-374m"],
        mixer__decay__proj__0__out_features=64,
    ),
    *rows(
        f"{OPEN}: FLA's width",
        [*SWILA_374M, "deltanet-374m", "gdn-374m", "kda-374m", "dn-mom-374m", "gdn-mom-374m"],
        mixer__q_conv1d__width=4,
    ),
    *rows(
        f"{APP_LM}: attention at layers 4, 8, 12, 16, 20 and 24",
        ["hybrid-gdn-374m", "hybrid-temporal-swila-374m"],
        config__attention_layers=[3, 7, 11, 15, 19, 23],
        fourth__num_heads=8,
        fourth__head_dim=128,
    ),
    *rows(APP_LM, "hybrid-gdn-374m", mixer__num_heads=8, mixer__head_k_dim=128, mixer__head_v_dim=128),
    *rows(
        APP_LM,
        "hybrid-temporal-swila-374m",
        mixer__num_heads=8,
        mixer__num_mixtures=4,
        mixer__head_k_dim=64,
        mixer__head_v_dim=64,
        mixer__temporal=True,
    ),
    *rows(
        f"{APP_LM}, GDN-MoM",
        "gdn-mom-374m",
        mixer__num_memories=3,
        mixer__top_k=2,
        mixer__shared_memory=True,
        mixer__num_heads=8,
        mixer__head_k_dim=64,
        mixer__head_v_dim=64,
    ),
    *rows(
        f"{APP_LM}, DeltaNet-MoM, the third configuration",
        "dn-mom-374m",
        mixer__num_memories=3,
        mixer__top_k=2,
        mixer__shared_memory=True,
        mixer__num_heads=2,
        mixer__head_k_dim=128,
        mixer__head_v_dim=128,
        mixer__decay=None,
        config__intermediate_size=3_326,
    ),
    *rows(f"{OPEN}: that of its paper", ["dn-mom-374m", "gdn-mom-374m"], mixer__balance_scale=0.01),
    *[
        (f"{OPEN}: widths that make 374M parameters", f"{name}-374m", "config.intermediate_size", width)
        for name, width in {
            "transformer": 2816,
            "fox": 2816,
            "deltanet": 2816,
            "gdn": 2464,
            "kda": 2640,
            "gdn-mom": 2288,
            "swila": 3312,
            "temporal-swila": 2960,
            "gated-swila": 3248,
            "gated-temporal-swila": 2896,
            "hybrid-gdn": 2560,
            "hybrid-temporal-swila": 2928,
        }.items()
    ],
    # The six models of the throughput study: only their size is in the paper
    *rows(
        f"{OPEN}: the skeleton of 1.3B",
        [f"{name}-1.3b" for name in SIX_1_3B],
        config__num_hidden_layers=24,
        config__hidden_size=2048,
        config__vocab_size=32_000,
    ),
    *rows(OPEN, "transformer-1.3b", mixer__num_heads=32, mixer__head_dim=64),
    *rows(OPEN, ["gdn-1.3b", "hybrid-gdn-1.3b"], mixer__num_heads=16, mixer__head_k_dim=128),
    *rows(
        OPEN,
        ["swila-1.3b", "temporal-swila-1.3b", "hybrid-temporal-swila-1.3b"],
        mixer__num_heads=16,
        mixer__num_mixtures=4,
        mixer__head_k_dim=64,
        mixer__key_router__0__out_features=64,
        mixer__b_proj__0__out_features=64,
    ),
    *rows(
        f"section 5.4: three recurrent layers, then one of attention; {APP_THROUGHPUT}",
        ["hybrid-gdn-1.3b", "hybrid-temporal-swila-1.3b"],
        config__attention_layers=[3, 7, 11, 15, 19, 23],
    ),
    *rows(f"{OPEN}: that of 374M", "swila-1.3b", mixer__balance_marginal=1e-3),
    *rows(
        f"{OPEN}: that of 374M",
        ["temporal-swila-1.3b", "hybrid-temporal-swila-1.3b"],
        mixer__balance_marginal=5e-4,
        mixer__temporal=True,
    ),
    *[
        (f"{OPEN}: widths that make the Transformer's 1,364.3M", f"{name}-1.3b", "config.intermediate_size", width)
        for name, width in {
            "transformer": 5632,
            "gdn": 4928,
            "hybrid-gdn": 5104,
            "swila": 6800,
            "temporal-swila": 6128,
            "hybrid-temporal-swila": 6000,
        }.items()
    ],
    # The ablation
    *[
        (f"{OPEN}: widths that make 115M parameters", f"{name}-115m", "config.intermediate_size", width)
        for name, width in {
            "swila": 1680,
            "temporal-swila": 1424,
            "swila-unbalanced": 1680,
            "temporal-swila-unbalanced": 1424,
            "swila-16": 1968,
            "temporal-swila-16": 1840,
        }.items()
    ],
    *rows(
        f"{OPEN}: the skeleton of 115M",
        [f"{name}-115m" for name in ABLATION],
        config__num_hidden_layers=12,
        config__hidden_size=768,
        mixer__num_heads=6,
    ),
    *rows(
        f"{APP_ABLATION}: 4 experts",
        [f"{name}-115m" for name in ABLATION[:4]],
        mixer__num_mixtures=4,
        mixer__head_k_dim=64,
        mixer__key_router__0__out_features=64,
    ),
    *rows(
        f"{APP_ABLATION}: 16 experts with the same state",
        [f"{name}-115m" for name in ABLATION[4:]],
        mixer__num_mixtures=16,
        mixer__head_k_dim=32,
        mixer__key_router__0__out_features=32,
    ),
    *rows(
        f"{APP_ABLATION}: no load balancing",
        ["swila-unbalanced-115m", "temporal-swila-unbalanced-115m"],
        mixer__balance_marginal=0.0,
        mixer__balance_conditional=0.0,
    ),
    *rows(f"{OPEN}: that of 374M", ["swila-115m", "swila-16-115m"], mixer__balance_marginal=1e-3),
    *rows(f"{OPEN}: that of 374M", ["temporal-swila-115m", "temporal-swila-16-115m"], mixer__balance_marginal=5e-4),
    *rows(
        APP_ABLATION,
        ["temporal-swila-115m", "temporal-swila-unbalanced-115m", "temporal-swila-16-115m"],
        mixer__temporal=True,
    ),
    *rows(APP_ABLATION, ["swila-115m", "swila-unbalanced-115m", "swila-16-115m"], mixer__temporal=False),
    # Pretraining
    *rows(
        APP_LM,
        [f"recipe {name}-374m" for name in THIRTEEN],
        optimizer__lr=3e-4,
        optimizer__weight_decay=0.01,
        optimizer__clip=1.0,
        schedule__schedule="cosine",
        schedule__steps=28_610,
        schedule__warmup_steps=954,
        schedule__min_lr=0.1,
        data__length=4096,
        data__batch_size=128,
        model__vocab_size=32_000,  # of the tokenizer
    ),
    *[
        (f"{APP_LM}: load balancing", f"recipe {name}-374m", "model.mixer_options.swila.balance_marginal", weight)
        for name, weight in {
            "swila": 1e-3,
            "temporal-swila": 5e-4,
            "gated-swila": 5e-4,
            "gated-temporal-swila": 2.5e-4,
            "hybrid-temporal-swila": 5e-4,
        }.items()
    ],
    *rows(
        f"{OPEN}: the optimizer of 374M, and a third of its steps for a third of its tokens",
        [f"recipe {name}-115m" for name in ABLATION],
        optimizer__lr=3e-4,
        optimizer__weight_decay=0.01,
        optimizer__clip=1.0,
        schedule__schedule="cosine",
        schedule__steps=9_537,
        schedule__warmup_steps=318,
        schedule__min_lr=0.1,
        data__length=4096,
        data__batch_size=128,
    ),
    *rows(
        f"{OPEN}: the optimizer of 374M, and 20 tokens per parameter",
        [f"recipe {name}-1.3b" for name in SIX_1_3B],
        optimizer__lr=3e-4,
        optimizer__weight_decay=0.01,
        optimizer__clip=1.0,
        schedule__steps=52_000,
        schedule__warmup_steps=954,
        schedule__min_lr=0.1,
        data__length=4096,
        data__batch_size=128,
    ),
    *rows(
        OPEN,
        [
            *[f"recipe {name}-374m" for name in THIRTEEN],
            *[f"recipe {name}-115m" for name in ABLATION],
            *[f"recipe {name}-1.3b" for name in SIX_1_3B],
        ],
        optimizer__betas=(0.9, 0.95),
        optimizer__eps=1e-8,
        precision="bfloat16",
        seed=0,
        data__packing="stream",
        model__initializer_range=0.02,
        model__tie_word_embeddings=False,
    ),
]
