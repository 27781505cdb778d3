"""Presets of MQAR: the models and sizes of CDAR, on a task without contexts."""

from __future__ import annotations

from dataclasses import replace

from swila.experiments import cdar
from swila.tasks import MQAR

PRESETS = {
    "tiny": replace(
        cdar.PRESETS["tiny"],
        summary="6 pairs, length 32: minutes on a CPU",
        task=MQAR(vocab_size=32, num_pairs=6, length=32),
    ),
    "small": replace(
        cdar.PRESETS["small"],
        summary="32 pairs, length 256: for one GPU",
        task=MQAR(vocab_size=1024, num_pairs=32, length=256),
    ),
    "paper": replace(
        cdar.PRESETS["paper"],
        summary="128 pairs, length 1024, as many as CDAR has in the paper: 420 runs of minutes each on one GPU",
        task=MQAR(vocab_size=8192, num_pairs=128, length=1024),
    ),
}
