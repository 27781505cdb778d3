"""Presets of CDAR: Temporal SwiLA and its baselines at the same state size."""

from __future__ import annotations

from swila.experiments.loop import TrainingConfig
from swila.experiments.recall.presets import Preset
from swila.tasks import CDAR

PRESETS = {
    "tiny": Preset(
        summary="3 contexts of 2 keys, length 32: minutes on a CPU",
        task=CDAR(vocab_size=32, num_contexts=3, num_keys=2, length=32),
        memories=3,
        train_examples=20_000,
        test_examples=500,
        models=("temporal-swila", "swila", "deltanet"),
        hidden_sizes=(16,),
        layers=(1,),
        lrs=(7e-3,),
        seeds=5,
        training=TrainingConfig(steps=1200, warmup_steps=75, clip=1.0, eval_every=50),
        router_projection="swiglu:64",
        temporal_bias=-2.0,
        noise=True,
        embed_dropout=0.0,
        init_std=0.3,
        attention_heads=2,
    ),
    "small": Preset(
        summary="4 contexts of 8 keys, length 256: for one GPU",
        task=CDAR(vocab_size=1024, num_contexts=4, num_keys=8, length=256),
        memories=4,
        train_examples=20_000,
        test_examples=1_000,
        models=("temporal-swila", "swila", "deltanet", "dn-mom"),
        hidden_sizes=(32, 64),
        layers=(1,),
        lrs=(1e-3, 3e-3, 1e-2),
        seeds=1,
        training=TrainingConfig.over_epochs(20, 20_000, 64, schedule="cosine", clip=1.0, precision="bfloat16"),
        router_projection="swiglu:256",
        temporal_bias=-4.0,
        noise=True,
        embed_dropout=0.0,
        init_std=0.1,
    ),
    "paper": Preset(
        summary="4 contexts of 32 keys, length 1024, as in the paper: 420 runs of minutes each on one GPU",
        task=CDAR(),
        memories=4,
        train_examples=100_000,
        test_examples=3_000,
        models=("temporal-swila", "swila", "deltanet", "dn-mom", "attention"),
        hidden_sizes=(32, 64, 128, 256),
        layers=(1, 2),
        lrs=(3.16e-4, 1e-3, 3.16e-3, 1e-2),
        seeds=3,
        training=TrainingConfig.over_epochs(50, 100_000, 64, schedule="cosine-epochs", precision="bfloat16"),
        router_projection="swiglu:256",
        temporal_bias=-4.0,
        noise=True,
        embed_dropout=0.1,
        init_std=0.1,
    ),
}
