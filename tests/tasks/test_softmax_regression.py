"""The regression task: inputs by their law, targets by the plainest code there is."""

import math

import pytest
import torch

from swila.tasks import SoftmaxRegression
from swila.tasks.softmax_regression import attention_targets

SMALL = SoftmaxRegression(dim=6, length=9, clusters=4)


def naive(x, teacher):
    """One head of causal softmax attention, token by token in float64."""
    q, k, v = (x.double() @ projection.double().T for projection in teacher[1:])
    tau = math.sqrt(x.shape[-1]) / 2
    out = []
    for t in range(len(x)):
        weights = torch.tensor([math.exp(q[t] @ k[i] / tau) for i in range(t + 1)], dtype=torch.float64)
        out.append((weights / weights.sum()) @ v[: t + 1])
    return torch.stack(out)


def test_targets_are_softmax_attention():
    teacher = SMALL.teacher(3)
    pairs = SMALL.examples(5, "train", seed=3)
    assert pairs.inputs.shape == pairs.targets.shape == (5, 9, 6)
    for x, target in zip(pairs.inputs, pairs.targets, strict=True):
        torch.testing.assert_close(target.double(), naive(x, teacher), atol=1e-5, rtol=1e-5)


def test_targets_do_not_depend_on_the_precision_of_products():
    teacher, x = SMALL.teacher(), SMALL.examples(2, "test").inputs
    expected = attention_targets(x, teacher)
    torch.set_float32_matmul_precision("medium")
    try:
        torch.testing.assert_close(attention_targets(x, teacher), expected, atol=0, rtol=0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_inputs_lie_in_clusters_on_the_sphere():
    task = SoftmaxRegression(dim=32, length=64, clusters=5)
    centres = torch.nn.functional.normalize(task.teacher().centres, dim=-1)
    x = task.examples(64, "train").inputs
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(64, 64))
    nearest = (x @ centres.T).max(-1)
    # |mu + 0.5 eps| ~ sqrt(1.25 D): the cosine to the centre is about 1 / sqrt(1.25)
    assert nearest.values.mean().item() == pytest.approx(1 / math.sqrt(1.25), abs=0.02)
    shares = torch.bincount(nearest.indices.flatten(), minlength=5) / x.shape[0] / x.shape[1]
    torch.testing.assert_close(shares, torch.full((5,), 0.2), atol=0.03, rtol=0)
    repeats = (nearest.indices[:, 1:] == nearest.indices[:, :-1]).float().mean().item()
    assert repeats == pytest.approx(0.2, abs=0.03), "clusters are drawn independently"
    still = SoftmaxRegression(dim=32, length=8, clusters=5, noise=0.0).examples(2, "train").inputs
    assert len(still.flatten(0, 1).unique(dim=0)) <= 5


def test_seeds_splits_and_counts():
    first = SMALL.examples(700, "train")
    torch.testing.assert_close(SMALL.examples(600, "train").inputs, first.inputs[:600], atol=0, rtol=0)
    assert not torch.equal(SMALL.examples(3, "val").inputs, first.inputs[:3])
    assert not torch.equal(SMALL.examples(3, "test").inputs, SMALL.examples(3, "val").inputs)
    assert not torch.equal(SMALL.examples(3, "train", seed=1).inputs, first.inputs[:3])
    for a, b in zip(SMALL.teacher(), SMALL.teacher(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(SMALL.teacher(1).query, SMALL.teacher().query)


def test_clusters_belong_to_the_seed():
    task = SoftmaxRegression(dim=6, length=9, clusters=4, noise=0.0)

    def clusters(seed):
        centres = torch.nn.functional.normalize(task.teacher(seed).centres, dim=-1)
        return (task.examples(20, "train", seed).inputs @ centres.T).argmax(-1)

    assert not torch.equal(clusters(0), clusters(1))


def test_the_papers_sizes():
    task = SoftmaxRegression()
    assert (task.dim, task.length, task.clusters, task.noise) == (32, 512, 32, 0.5)
    teacher = task.teacher()
    assert [tuple(part.shape) for part in teacher] == [(32, 32)] * 4
    assert torch.stack(list(teacher)).std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"clusters": -1}, "clusters must be at least 1, got -1"),
        ({"noise": -0.5}, "noise must be at least 0, got -0.5"),
        ({"noise": float("nan")}, "noise must be at least 0, got nan"),
    ],
)
def test_bad_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxRegression(**options)
