"""Which parameters have weight decay."""

import pytest
from torch import nn

from swila.models import SyntheticModel, SyntheticModelConfig
from swila.training import make_optimizer
from swila.training.optimizer import parameter_groups


def test_weight_decay_spares_what_layers_exempt():
    model = SyntheticModel(SyntheticModelConfig(32, 8, 1, "gated-deltanet", {"num_heads": 1}))
    optimizer = make_optimizer(model, lr=0.3, weight_decay=0.1, betas=(0.8, 0.95))
    decayed, exempt = optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(names[id(p)].split(".")[-1] for p in exempt["params"]) == ["A_log", "dt_bias"]
    assert exempt["weight_decay"] == 0
    assert decayed["weight_decay"] == 0.1
    assert len(decayed["params"]) + 2 == len(names)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["fused"]) == (0.3, (0.8, 0.95), True)


@pytest.mark.parametrize(("exempt", "decays"), [((), [0.1]), (("weight",), [0.0])])
def test_a_group_without_parameters_is_left_out(exempt, decays):
    model = nn.Linear(2, 2, bias=False)
    model.no_weight_decay = exempt
    assert [group["weight_decay"] for group in parameter_groups(model, 0.1)] == decays
