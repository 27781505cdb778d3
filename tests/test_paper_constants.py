"""Every constant of the paper, in every preset that has one, with its place in the paper.

The expected values are written from the paper, not from the code, and compared with the models as they are built.
Rows marked ``OPEN`` are choices that the paper leaves open. They are pinned as well, because finished results depend on
them.
"""

import dataclasses
from functools import cache

import pytest
import torch

from swila import SwiLAConfig, SwiLAForCausalLM
from swila.experiments import cdar, mqar, recall, regbench, softmax_regression
from swila.layers import SwiLA
from swila.models.language.presets import ARCHITECTURES, SIZES
from swila.pretraining.recipes import RECIPES, get_recipe
from swila.tasks import CDAR, RegBench, SoftmaxRegression

pytestmark = pytest.mark.unpoisoned  # a patched torch.empty does not know the meta device

OPEN = "not in the paper"
SECTION_51, SECTION_52, SECTION_53 = "section 5.1", "section 5.2", "section 5.3"
APP_51 = "App. D, Approximating Softmax Attention"
APP_CDAR = "App. D, Context-Dependent Associative Recall"
APP_REGBENCH = "App. D, RegBench"
APP_LM = "App. D, Pretraining Language Models"
APP_THROUGHPUT = "App. D, Throughput Comparison"
APP_ABLATION = "section 5.5 and App. D, Ablation Study"
APP_LAYER = "App. B, Details of the SwiLA Layer"
APP_GATED = "App. B, Gated SwiLA Details"

CDAR_MODELS = ("temporal-swila", "swila", "deltanet", "dn-mom", "attention")
REGBENCH_MODELS = ("temporal-swila", "swila", "dn-mom", "deltanet", "attention")
BOTH = ("swila", "temporal-swila")


def built(run):
    """The model of a run, without memory."""
    with torch.device("meta"):
        return run.kind.model(run.model)


@cache
def subject(name):
    """What a row is about: a preset, a run and its model, a recipe, or a language model."""
    kind, _, rest = name.partition(" ")
    if kind == "cdar":
        if not rest:
            return cdar.PRESETS["paper"]
        (run,) = cdar.make_runs("paper", [rest], [64], [1], [1e-3], [0])
        return {"run": run, "built": built(run), "mixer": built(run).mixers[0]}
    if kind == "mqar":
        return mqar.PRESETS["paper"]
    if kind == "regbench":
        if not rest:
            return regbench.PRESETS["paper"]
        (run,) = regbench.make_runs("paper", [rest], [40_000], seeds=[0])
        return {"run": run, "built": built(run), "mixer": built(run).mixers[0]}
    if kind == "regression":
        if not rest:
            return softmax_regression.PRESETS["paper"]
        model, _, size = rest.partition(" ")
        runs = softmax_regression.make_runs("paper", [model], seeds=[0])
        run = next(run for run in runs if run.size == size)
        return {"run": run, "mixer": built(run).mixer}
    if kind == "recipe":
        return get_recipe(rest)
    with torch.device("meta"):
        model = SwiLAForCausalLM(SwiLAConfig.preset(name))
    mixers = [layer.mixer for layer in model.model.layers]
    return {"model": model, "config": model.config, "mixer": mixers[0], "fourth": mixers[3]}


def value(thing, path):
    """``a.b.c`` of a thing: attributes, keys or indices."""
    for part in path.split("."):
        if isinstance(thing, dict):
            thing = thing[part]
        elif part.isdigit():
            thing = thing[int(part)]
        else:
            thing = getattr(thing, part)
    return thing


def rows(place, subjects, **expected):
    """A row for each subject and value; ``__`` stands for the dot in a path."""
    names = [subjects] if isinstance(subjects, str) else subjects
    return [(place, name, path.replace("__", "."), wanted) for name in names for path, wanted in expected.items()]


def each(experiment, models):
    return [f"{experiment} {model}" for model in models]


THIRTEEN = (
    "transformer", "deltanet", "gdn", "dn-mom", "gdn-mom", "kda", "fox", "swila", "temporal-swila", "gated-swila",
    "gated-temporal-swila", "hybrid-gdn", "hybrid-temporal-swila",
)  # fmt: skip
SWILA_374M = ("swila-374m", "temporal-swila-374m", "gated-swila-374m", "gated-temporal-swila-374m")
SIX_1_3B = ("transformer", "gdn", "hybrid-gdn", "swila", "temporal-swila", "hybrid-temporal-swila")
ABLATION = (
    "swila", "temporal-swila", "swila-unbalanced", "temporal-swila-unbalanced", "swila-16", "temporal-swila-16"
)  # fmt: skip

TABLE = [
    # Approximating softmax attention
    *rows(
        f"{SECTION_51}; {APP_51}",
        "regression",
        task__dim=32,
        task__length=512,
        task__clusters=32,
        task__noise=0.5,
        train_examples=65_536,
        held_out=2_048,
        budgets=(1, 2, 4, 8, 16, 32),
        factorisations=None,
        router_projection="swiglu:256",
    ),
    *rows(
        OPEN,
        "regression",
        lrs=(1e-2,),
        seeds=3,
        training__batch_size=256,
        training__steps=10 * 256,
        training__eval_every=256,
        training__warmup_steps=128,
        training__schedule="cosine",
        training__min_lr=0.0,
        training__weight_decay=0.0,
        training__betas=(0.9, 0.999),
        training__clip=1.0,
        training__stop_at=None,
        training__patience=None,
        training__precision="bfloat16",
    ),
    *rows(f"{APP_51}, SwiLA", "regression swila H2J2", mixer__num_heads=2, mixer__num_mixtures=2),
    *rows(
        f"{APP_51}, SwiLA",
        ["regression swila H1J2", "regression swila H2J2", "regression swila H2J16"],
        mixer__head_k_dim=32,
        mixer__head_v_dim=32,
        mixer__key_router__gate__out_features=256,
        mixer__query_router__gate__out_features=256,
        mixer__balance_marginal=1e-3,
        mixer__balance_conditional=1e-3,
        mixer__router_noise=False,
        mixer__temporal=False,
        mixer__decay_kind=None,
        mixer__normalize=True,
        mixer__g_proj=None,
    ),
    *rows(f"{APP_51}: the learning rates are linear", "regression swila H1J2", mixer__b_proj__out_features=2 * 32),
    *rows(f"{APP_51}, DeltaNet", "regression deltanet H4", mixer__num_heads=4, mixer__b_proj__out_features=4),
    *rows(
        f"{APP_51}, DeltaNet",
        "regression deltanet H4",
        mixer__head_k_dim=32,
        mixer__head_v_dim=32,
        mixer__decay=None,
        mixer__g_proj=None,
    ),
    *rows(OPEN, ["regression swila H1J2", "regression deltanet H4"], mixer__use_short_conv=False),
    *rows(
        f"{APP_51}, MHA",
        "regression attention H1",
        mixer__head_dim=32,
        mixer__o_proj__bias=None,
        mixer__q_norm=None,
        mixer__g_proj=None,
    ),
    *rows(OPEN, "regression attention H1", mixer__num_heads=1, mixer__rope_theta=None, mixer__use_short_conv=False),
    # CDAR
    *rows(
        f"{SECTION_52}; {APP_CDAR}",
        "cdar",
        task__num_contexts=4,
        task__num_keys=32,
        task__vocab_size=8192,
        task__length=1024,
        task__power=0.01,
        task__num_queries=128,
        train_examples=100_000,
        test_examples=3_000,
        models=CDAR_MODELS,
        hidden_sizes=(32, 64, 128, 256),
        layers=(1, 2),
        lrs=(3.16e-4, 1e-3, 3.16e-3, 1e-2),
        seeds=3,
        memories=4,
        training__batch_size=64,
        training__steps=50 * (100_000 // 64),
        training__eval_every=100_000 // 64,
        noise=True,
        router_projection="swiglu:256",
        attention_heads=4,
    ),
    *rows(
        f"{OPEN}: Zoology's training",
        "cdar",
        training__weight_decay=0.1,
        training__betas=(0.9, 0.999),
        training__schedule="cosine-epochs",
        training__warmup_steps=0,
        training__min_lr=0.0,
        training__clip=None,
        training__stop_at=0.99,
        training__patience=None,
        embed_dropout=0.1,
    ),
    *rows(
        OPEN,
        "cdar",
        task__context_pool=None,
        training__precision="bfloat16",
        temporal_bias=-4.0,
        init_std=0.1,
        conv_on="qkv",
    ),
    *rows(
        f"{APP_CDAR}, SwiLA and Temporal SwiLA",
        each("cdar", BOTH),
        mixer__num_heads=1,
        mixer__num_mixtures=4,
        mixer__head_k_dim=32,  # e_k = e_v = 0.5 of d = 64
        mixer__head_v_dim=32,
        mixer__key_router__gate__out_features=256,
        mixer__query_router__gate__out_features=256,
        mixer__b_proj__gate__out_features=32,
        mixer__router_noise=True,
        mixer__balance_marginal=0.0,
        mixer__balance_conditional=0.0,
        mixer__decay_kind=None,
        mixer__normalize=True,
    ),
    *rows(f"{APP_CDAR}, Temporal SwiLA", "cdar temporal-swila", mixer__temporal=True, mixer__temporal_noise=True),
    *rows(f"{APP_CDAR}, SwiLA", "cdar swila", mixer__temporal=False),
    *rows(
        f"{APP_CDAR}, DeltaNet",
        "cdar deltanet",
        mixer__num_heads=4,
        mixer__head_k_dim=32,  # e_k = e_v = 2 of d = 64, in 4 heads
        mixer__head_v_dim=32,
        mixer__g_proj=None,
        mixer__decay=None,
    ),
    *rows(f"{APP_CDAR}, Softmax Attention", "cdar attention", mixer__num_heads=4, mixer__rope_theta=10_000.0),
    *rows(
        f"{APP_CDAR}, DeltaNet-MoM",
        "cdar dn-mom",
        mixer__num_memories=4,
        mixer__top_k=2,
        mixer__num_heads=1,
        mixer__shared_memory=False,
        mixer__decay=None,
    ),
    *rows(f"{OPEN}: it makes the states equal", "cdar dn-mom", mixer__head_k_dim=32, mixer__head_v_dim=32),
    *rows(f"{OPEN}: that of its paper", "cdar dn-mom", mixer__balance_scale=0.01),
    *rows(
        f"{APP_CDAR}: all models",
        each("cdar", CDAR_MODELS),
        mixer__q_conv1d__width=2,
        built__blocks__0__mlp__fc1__out_features=4 * 64,
    ),
    *rows(
        f"{OPEN}: dropout on each sub-layer, without a number",
        each("cdar", CDAR_MODELS),
        built__blocks__0__dropout__p=0.0,
        built__embed_dropout__p=0.1,
        run__validation_examples=0,
        run__data_seed=0,
    ),
    # MQAR is not one of the paper's experiments: CDAR's models with as many associations
    *rows(
        OPEN,
        "mqar",
        task__num_pairs=128,
        task__vocab_size=8192,
        task__length=1024,
        task__power=0.01,
        task__random_filler=False,
        training__batch_size=64,
        memories=4,
        models=CDAR_MODELS,
    ),
    # RegBench
    *rows(
        SECTION_52,
        "regbench",
        task__states=(4, 12),
        task__alphabet=(4, 18),
        held_out=500,
        task__held_out=500,
    ),
    *rows(
        f"{SECTION_52} has 10-20 strings; as in RegBench's own code, the upper end is exclusive",
        "regbench",
        task__strings=(10, 19),
    ),
    *rows(
        f"{OPEN}: as in RegBench's own code",
        "regbench",
        task__edges=(1, 3),
        task__string_length=(1, 49),
        task__symbols=18,
        task__vocab_size=20,
        automata=(1_000, 2_500, 5_000, 10_000, 20_000, 40_000),
    ),
    *rows(f"{APP_REGBENCH}", "regbench", hidden_size=256, layers=8, lr=2.5e-4, epochs=200, batch_size=32),
    *rows(OPEN, "regbench", seeds=1, looks=100),
    *rows(
        APP_REGBENCH,
        each("regbench", REGBENCH_MODELS),
        run__model__hidden_size=256,
        run__model__num_layers=8,
        run__training__lr=2.5e-4,
        run__training__weight_decay=0.1,
        run__training__schedule="cosine",
        run__training__warmup_steps=25_000,  # a tenth of 200 epochs of 40,000 in batches of 32
        run__training__steps=250_000,
        run__training__warmup_from=1e-6,
        run__training__min_lr=0.1,  # 2.5e-5 of 2.5e-4
        run__training__batch_size=32,
        built__embed_dropout__p=0.1,
        built__blocks__0__dropout__p=0.0,
        built__blocks__0__mlp__fc1__out_features=1024,
        run__test_examples=500,
    ),
    *rows(
        OPEN,
        each("regbench", REGBENCH_MODELS),
        run__training__betas=(0.9, 0.999),
        run__training__stop_at=None,
        run__training__precision="bfloat16",
        run__validation_examples=500,
        run__model__gelu="tanh",
        run__model__init_std=0.02,
        run__model__rescaled=("fc2", "o_proj"),
    ),
    *rows(f"{OPEN}; RegBench's own code has none", each("regbench", REGBENCH_MODELS), run__training__clip=1.0),
    *rows(
        APP_REGBENCH,
        each("regbench", BOTH),
        mixer__num_heads=2,
        mixer__num_mixtures=2,
        mixer__head_k_dim=64,  # expand_k = expand_v = 0.5 of 256, in 2 heads
        mixer__head_v_dim=64,
        mixer__router_noise=False,
        mixer__temporal_noise=False,
        mixer__balance_marginal=0.005,
        mixer__balance_conditional=0.005,
        mixer__decay_kind=None,
    ),
    *rows(APP_REGBENCH, "regbench temporal-swila", mixer__temporal=True),
    *rows(OPEN, "regbench temporal-swila", mixer__temporal_bias=0.0),
    *rows(APP_REGBENCH, "regbench swila", mixer__temporal=False),
    *rows(
        APP_REGBENCH,
        "regbench dn-mom",
        mixer__num_heads=1,
        mixer__num_memories=4,
        mixer__top_k=2,
        mixer__head_k_dim=64,
        mixer__head_v_dim=64,
        mixer__shared_memory=False,
        mixer__decay=None,
    ),
    *rows(f"{OPEN}: that of its paper", "regbench dn-mom", mixer__balance_scale=0.01),
    *rows(
        APP_REGBENCH,
        "regbench deltanet",
        mixer__num_heads=4,
        mixer__head_k_dim=64,
        mixer__head_v_dim=64,
        mixer__g_proj=None,
    ),
    *rows(APP_REGBENCH, "regbench attention", mixer__num_heads=4, mixer__head_dim=64, mixer__use_short_conv=False),
    *rows(f"{OPEN}: the usual base", "regbench attention", mixer__rope_theta=10_000.0),
    *rows(
        f"{APP_REGBENCH}: a short convolution of width 4",
        each("regbench", ("temporal-swila", "swila", "dn-mom", "deltanet")),
        mixer__q_conv1d__width=4,
        mixer__k_conv1d__width=4,
        mixer__v_conv1d__width=4,
    ),
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


@pytest.mark.parametrize("name", list(dict.fromkeys(name for _, name, _, _ in TABLE)))
def test_constants(name):
    """All rows of a subject; a failure names the place in the paper."""
    for place, _, path, expected in (row for row in TABLE if row[1] == name):
        found = value(subject(name), path)
        assert found == expected, f"{name}: {path} is {found!r}, but {expected!r} by {place}"
        assert type(found) is type(expected) or isinstance(found, int | float), f"{name}: {path}"


def test_no_row_twice():
    places = [(name, path) for _, name, path, _ in TABLE]
    assert len(set(places)) == len(places)


SAID_ELSEWHERE = {"summary", "task", "training"}  # their own fields are rows


@pytest.mark.parametrize(
    ("name", "preset", "task"),
    [
        ("cdar", recall.Preset, CDAR),
        ("regbench", regbench.Preset, RegBench),
        ("regression", softmax_regression.Preset, SoftmaxRegression),
    ],
)
def test_every_field_of_a_preset_has_a_row(name, preset, task):
    paths = {path for _, subject_name, path, _ in TABLE if subject_name == name}
    fields = {field.name for field in dataclasses.fields(preset)} - SAID_ELSEWHERE
    fields |= {f"task.{field.name}" for field in dataclasses.fields(task)}
    assert fields <= paths


def test_every_language_model_has_rows():
    named = {name for _, name, _, _ in TABLE}
    expected = {f"{name}-{size}" for size in ("115m", "374m", "1.3b") for name in SIZES[size].widths}
    assert expected <= named
    assert set(SIZES["374m"].widths) == set(THIRTEEN), APP_LM
    assert set(SIZES["1.3b"].widths) == set(SIX_1_3B), APP_THROUGHPUT
    assert set(SIZES["115m"].widths) == set(ABLATION), APP_ABLATION
    assert set(ARCHITECTURES) == {*THIRTEEN, *ABLATION}


def test_every_recipe_has_rows():
    named = {name.removeprefix("recipe ") for _, name, _, _ in TABLE if name.startswith("recipe ")}
    assert named == {name for name in RECIPES if name.rpartition("-")[2] not in ("tiny", "small")}


def test_the_papers_tokens():
    """App. D: approximately 15B tokens, and 5B in the ablation."""
    assert abs(get_recipe("swila-374m").tokens / 15e9 - 1) < 0.001
    assert abs(get_recipe("swila-115m").tokens / 5e9 - 1) < 0.001


def test_the_papers_states():
    """Section 5.3 and App. D: 131,072 scalars a layer at 374M; 16,384 in RegBench; 2^12 of the claimed CDAR model."""
    for name in THIRTEEN:
        mixer = subject(f"{name}-374m")["mixer"]
        if name not in ("transformer", "fox"):
            assert mixer.state_size() == 131_072, name
    for name in ("temporal-swila", "swila", "dn-mom", "deltanet"):
        assert subject(f"regbench {name}")["mixer"].state_size() == 16_384, name
        assert subject(f"cdar {name}")["mixer"].state_size() == 2**12, name


def test_biases_of_attention():
    """App. D: with biases on q, k and v, without one on the output; Zoology and RegBench have one there too."""
    for name, output in (("regression attention H1", False), ("cdar attention", True), ("regbench attention", True)):
        mixer = subject(name)["mixer"]
        assert all(getattr(mixer, f"{part}_proj").bias is not None for part in "qkv"), name
        assert (mixer.o_proj.bias is not None) == output, name
    assert subject("transformer-374m")["mixer"].q_proj.bias is None


def test_output_gates():
    """None in SwiLA, DeltaNet and DN-MoM; GDN, KDA and GDN-MoM have those of their papers."""
    gated = {name for name in THIRTEEN if getattr(subject(f"{name}-374m")["mixer"], "g_proj", None) is not None}
    assert gated == {"gdn", "kda", "gdn-mom", "hybrid-gdn"}


def test_the_papers_grid_of_cdar():
    """App. D: Temporal SwiLA with one layer and up to d = 128, the others with 1 and 2 layers and up to 256."""
    found = {
        (run.label, run.model.hidden_size, run.model.num_layers, run.training.lr, run.training.seed)
        for run in cdar.make_runs("paper")
    }
    sizes = [("temporal-swila", d, 1) for d in (32, 64, 128)]
    sizes += [(m, d, n) for m in CDAR_MODELS[1:] for d in (32, 64, 128, 256) for n in (1, 2)]
    rates = (3.16e-4, 1e-3, 3.16e-3, 1e-2)
    assert found == {(*size, lr, seed) for size in sizes for lr in rates for seed in range(3)}


def test_the_papers_factorisations():
    """Section 5.1: all (H, J) with H J = B and J at most 16; DeltaNet has H = B."""
    preset = softmax_regression.PRESETS["paper"]
    expected = {(B // J, J) for B in (1, 2, 4, 8, 16, 32) for J in (1, 2, 4, 8, 16) if J <= B}
    assert set(softmax_regression.configurations("swila", preset, preset.budgets)) == expected
    deltanet = softmax_regression.configurations("deltanet", preset, preset.budgets)
    assert deltanet == [(B, 1) for B in (1, 2, 4, 8, 16, 32)]


def test_defaults_of_the_layer_are_the_papers():
    """Who makes a layer without options gets the paper's: App. B, with expansion factors of one half (App. D)."""
    layer = SwiLA(64)
    assert (layer.num_heads, layer.num_mixtures, layer.head_k_dim, layer.head_v_dim) == (8, 4, 4, 4)
    assert (layer.temporal, layer.decay_kind, layer.decay_order, layer.normalize) == (False, None, "pre", True)
    assert (layer.router_noise, layer.temporal_noise, layer.balance_marginal) == (False, False, 0.0)
    assert layer.q_conv1d.width == 4
    assert SwiLA(64, balance_marginal=0.3).balance_conditional == 0.3, "λ_cond is λ_marg unless told otherwise"
    assert SwiLA(64, balance_marginal=0.3, balance_conditional=0.0).balance_conditional == 0.0
