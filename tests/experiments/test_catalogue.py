"""The catalogue of models: what every experiment relies on."""

import pytest

from swila.experiments.catalogue import CATALOGUE, LOOKS, has_cache, select, title
from swila.experiments.registry import EXPERIMENTS, KINDS
from swila.layers import make_mixer


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_model_has_a_layer(name):
    model = CATALOGUE[name]
    assert model.name == name
    layer = make_mixer(model.mixer, 64, **{"num_heads": 2} | dict(model.options))
    assert has_cache(name) == (layer.state_size(length=100) != layer.state_size(length=200))


def test_models_are_selected_in_order_and_strangers_keep_their_names():
    assert list(select("kda", "swila")) == ["kda", "swila"]
    assert title("dn-mom") == LOOKS["dn-mom"].title == "DN-MoM"
    assert title("mine") == "mine"
    assert not has_cache("mine")


def test_experiments_use_models_of_the_catalogue():
    for experiment in EXPERIMENTS.values():
        assert all(CATALOGUE[name] is model for name, model in experiment.models.items())
    assert list(KINDS) == ["SoftmaxRegression", "CDAR", "MQAR", "RegBench"]
