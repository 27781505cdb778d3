"""The validation loss against the mean over exactly the chosen sequences, computed one by one."""

import itertools

import pytest
import torch
from small_runs import ALONE, copy_of, model_of, same_bits, sequences_of, small, write_data
from torch.nn import functional as F

from swila.pretraining.validation import Validation


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("validation") / "tokens", validation=20)


@pytest.fixture(scope="module")
def model():
    return model_of(small(mixer="swila", router_noise=True))


@torch.no_grad()
def mean_loss(model, sequences, indices):
    """The loss of sequences, each document in a call of its own."""
    total, count = 0.0, 0
    model.eval()
    for index in indices:
        batch = sequences.batch([index])
        bounds = [0, batch.labels.numel()] if batch.cu_seqlens is None else batch.cu_seqlens.tolist()
        for start, end in itertools.pairwise(bounds):
            logits, labels = model(batch.input_ids[:, start:end]).logits[0], batch.labels[0, start:end]
            total += F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100).item()
            count += (labels != -100).sum().item()
    model.train()
    return total / count


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5, 8])
def test_the_loss_is_the_mean_over_the_labels_of_the_chosen_sequences(data, model, packing, micro_batch):
    sequences = sequences_of(data, "validation", packing)
    validation = Validation(sequences, 5, micro_batch, ALONE)
    assert validation.loss(model) == pytest.approx(mean_loss(model, sequences, validation.indices), rel=1e-6)


def test_sequences_are_spread_evenly_over_the_validation_set(data):
    sequences = sequences_of(data, "validation")
    n = len(sequences)
    assert n > 15
    assert Validation(sequences, 10**6, 2, ALONE).indices == list(range(n))
    for count in (1, 3, 7, n - 1):
        indices = Validation(sequences, count, 2, ALONE).indices
        assert len(indices) == count == len(set(indices))
        gaps = [b - a for a, b in itertools.pairwise([*indices, n])]
        assert indices[0] == 0
        assert max(gaps) - min(gaps) <= 1


def test_the_model_is_left_as_it_was(data, model):
    validation = Validation(sequences_of(data, "validation"), 3, 2, ALONE)
    before = copy_of(model.named_parameters())
    for training in (True, False):
        model.train(training)
        validation.loss(model)
        assert model.training == training
        assert model.model.layers[0].mixer.training == training
    model.train()
    assert same_bits(copy_of(model.named_parameters()), before)
    assert all(p.grad is None for p in model.parameters())


def test_neither_noise_nor_the_generator_plays_a_part(data, model):
    validation = Validation(sequences_of(data, "validation"), 3, 2, ALONE)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = validation.loss(model)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert validation.loss(model) == first


def test_load_balancing_is_no_part_of_it(data):
    recipe = small(mixer="swila", balance_marginal=5.0)
    validation = Validation(sequences_of(data, "validation"), 4, 2, ALONE)
    found = [validation.loss(model_of(each)) for each in (recipe, small(mixer="swila"))]
    assert found[0] == found[1]


class Recorder(torch.nn.Module):
    """A model whose loss is the mean label, and which records its calls."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def forward(self, input_ids, shift_labels, **rest):
        self.shapes.append(tuple(input_ids.shape))
        kept = shift_labels[shift_labels != -100].double()
        return type("Out", (), {"loss": kept.sum() / max(kept.numel(), 1)})


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_sequences_and_make_equally_many_calls(data, monkeypatch, ranks):
    sequences = sequences_of(data, "validation")
    labels = sequences.batch(Validation(sequences, 7, 2, ALONE).indices).labels.double()
    totals, calls = torch.zeros(2, dtype=torch.float64), set()
    for rank in range(ranks):
        validation = Validation(sequences, 7, 2, ALONE)

        class World:
            device, size = torch.device("cpu"), ranks

            def sum(self, values):
                totals.add_(values)
                return values.tolist() if values[1] else [0.0, 1.0]

        validation.world = World()
        validation.world.rank = rank
        model = Recorder()
        validation.loss(model)
        calls.add(tuple(model.shapes))
    assert len(calls) == 1
    assert len(set(next(iter(calls)))) == 1, "all calls have the same shape"
    assert totals.tolist() == pytest.approx([labels.sum().item(), labels.numel()])
