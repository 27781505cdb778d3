"""The looks of all models: those that experiments compare, and the architectures that are pretrained.

The colours of the first eight are those of Okabe and Ito. A model of the experiments and the architecture with the same
sequence layer have one colour and one marker. Of the ablation's models, the pale ones have no load balancing and the
dark ones 16 mixtures.
"""

from __future__ import annotations

from swila.plots.style import Look

_SOFTMAX = Look("softmax attention", "#555555", "v", (0, (5, 2.5)))
_GATED_DELTANET = Look("Gated DeltaNet", "#56B4E9", "P", (0, (5, 1.5, 1, 1.5, 1, 1.5)))

LOOKS = {
    "temporal-swila": Look("Temporal SwiLA", "#D55E00", "D", (0, (9, 1.5))),
    "swila": Look("SwiLA", "#E69F00", "o", "-"),
    "deltanet": Look("DeltaNet", "#0072B2", "s", (0, (5, 1.5, 1, 1.5))),
    "gated-deltanet": _GATED_DELTANET,
    "kda": Look("KDA", "#CC79A7", "X", (0, (7, 3))),
    "dn-mom": Look("DN-MoM", "#009E73", "^", (0, (2.5, 1.2))),
    "attention": _SOFTMAX,
    "fox": Look("FoX", "#999999", "p", (0, (1, 1))),
    # of pretraining alone
    "transformer": _SOFTMAX._replace(title="Transformer++"),
    "gdn": _GATED_DELTANET._replace(title="GDN"),
    "gdn-mom": Look("GDN-MoM", "#8BC34A", "<", (0, (2.5, 1.2, 1, 1.2))),
    "gated-swila": Look("Gated SwiLA", "#C8C000", "h", (0, (4, 1))),
    "gated-temporal-swila": Look("Gated Temporal SwiLA", "#8E1B1B", "d", (0, (9, 1.5, 1, 1.5))),
    "hybrid-gdn": Look("Hybrid GDN", "#1F2A8C", "*", (0, (3, 1, 3, 1, 1, 1))),
    "hybrid-temporal-swila": Look("Hybrid Temporal SwiLA", "#8A4FBF", ">", (0, (9, 1.5, 3, 1.5))),
    "swila-unbalanced": Look("SwiLA, no load balancing", "#F5CF87", "8", (0, (1, 1.5))),
    "temporal-swila-unbalanced": Look("Temporal SwiLA, no load balancing", "#F2A07B", "h", (0, (3, 1.5))),
    "swila-16": Look("SwiLA, 16 mixtures", "#8A6A00", "H", (0, (6, 1, 1, 1))),
    "temporal-swila-16": Look("Temporal SwiLA, 16 mixtures", "#7A2C00", "d", (0, (6, 1))),
}
