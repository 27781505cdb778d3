"""What a model is judged by: every metric against plain numbers, counted by hand."""

import math

import pytest
import torch
from torch import nn

from swila.experiments.loop import LegalPrediction, Regression, TokenPrediction
from swila.experiments.loop.objective import CrossEntropy
from swila.tasks import IGNORE, AutomatonExamples, Examples, Pairs

# Two examples of 4 places and 3 tokens; the second has three labels, the first only one.
LOGITS = torch.tensor(
    [
        [[0.0, 0, 0], [2, 1, 0], [0, 0, 0], [0, 0, 0]],
        [[1, 3, 0], [3, 2, 0], [0, 0, 0], [0, 1, 2]],
    ]
)
LABELS = torch.tensor([[IGNORE, 0, IGNORE, IGNORE], [1, 1, IGNORE, 0]])


class Told(nn.Module):
    """Logits as told; the number of an example is its first token."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, inputs, where=None):
        logits = self.logits[inputs[:, 0].long()]
        if where is None:
            return logits
        if where.dtype == torch.bool:
            return logits[where]
        return logits.gather(1, where.unsqueeze(-1).expand(-1, -1, logits.shape[-1])).flatten(0, 1)


def numbered(labels):
    inputs = torch.zeros_like(labels)
    inputs[:, 0] = torch.arange(len(labels))
    return Examples(inputs, labels, torch.zeros_like(labels))


def cross_entropy(logits, label):
    return math.log(sum(math.exp(z) for z in logits)) - logits[label]


def losses():
    """Of the four labelled places, in order."""
    places = [(0, 1), (1, 0), (1, 1), (1, 3)]
    return [cross_entropy(LOGITS[n, t].tolist(), int(LABELS[n, t])) for n, t in places]


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_accuracy_is_the_mean_over_examples_of_the_share_that_is_right(batch_size):
    """The first example is all right; of the second only one of three: its other labels are the second likeliest and
    the least likely token."""
    found = TokenPrediction().evaluate(Told(LOGITS), numbered(LABELS), batch_size)
    assert found == {"accuracy": pytest.approx((1 + 1 / 3) / 2), "loss": pytest.approx(sum(losses()) / 4)}


@pytest.mark.parametrize("labels", [None, 3])
def test_the_loss_is_the_mean_over_labelled_places(labels):
    found = TokenPrediction(labels).loss(Told(LOGITS), numbered(LABELS))
    assert found.item() == pytest.approx(sum(losses()) / 4)


def test_cross_entropy_is_computed_in_full_precision():
    logits = torch.tensor([[300.0, 301.0, 0.0]], dtype=torch.bfloat16)
    found = CrossEntropy()(logits, torch.tensor([1]))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(cross_entropy([z - 300 for z in logits[0].tolist()], 1), rel=1e-5)
    assert CrossEntropy()(logits.double(), torch.tensor([1])).dtype == torch.float64


def test_scores():
    """Runs are compared, stopped and drawn by these."""
    assert (TokenPrediction.score, LegalPrediction.score, Regression.score) == ("accuracy", "accuracy", "r2")


def test_legal_predictions():
    """Symbols 1 to 3. What is legal, not what was drawn, counts; the unscored places have illegal answers."""
    logits = torch.tensor([[[0.0, 4, 3, 0, 0], [0, 0, 0, 5, 0], [9, 0, 0, 0, 0]], [[0, 1, 0, 0, 2], [0] * 5, [0] * 5]])
    labels = torch.tensor([[2, 1, IGNORE], [1, IGNORE, IGNORE]])
    legal = torch.tensor([[0b0110, 0b0110, 0b0110], [0b0010, 0b0010, 0]], dtype=torch.int32)
    examples = numbered(labels)
    data = AutomatonExamples(examples.inputs, labels, examples.context, legal)
    expected_loss = expected_tv = 0.0
    for n, t, symbols in ((0, 0, (1, 2)), (0, 1, (1, 2)), (1, 0, (1,))):
        z = logits[n, t].tolist()
        expected_loss += cross_entropy(z, int(labels[n, t])) / 3
        p = [math.exp(-cross_entropy(z, v)) for v in range(5)]
        expected_tv += sum(abs(p[v] - (v in symbols) / len(symbols)) for v in range(5)) / 2 / 3
    for batch_size in (1, 2):
        found = LegalPrediction().evaluate(Told(logits), data, batch_size)
        assert found == pytest.approx({"accuracy": 1 / 3, "loss": expected_loss, "tv": expected_tv})
    assert LegalPrediction().loss(Told(logits), data).item() == pytest.approx(expected_loss)


def test_r2_by_hand():
    """One output dim is predicted by its mean, the other is off by one; both lie far from the origin."""
    targets = torch.tensor([[[98.0, 51], [102, 49]], [[98, 50], [102, 50]]]).double()
    guesses = torch.tensor([[[100.0, 52], [100, 50]], [[100, 51], [100, 51]]]).double()

    class Guess(nn.Module):
        def forward(self, inputs):
            return guesses[inputs[:, 0, 0].long()]

    inputs = torch.zeros(2, 2, 2)
    inputs[1] = 1
    spread = 4 * 4 + 1 + 1
    errors = 4 * 4 + 4 * 1
    for batch_size in (1, 2):
        found = Regression().evaluate(Guess(), Pairs(inputs, targets), batch_size)
        assert found == {"r2": pytest.approx(1 - errors / spread), "loss": pytest.approx(errors / 8)}
    assert Regression().loss(Guess(), Pairs(inputs, targets)).item() == pytest.approx(errors / 8)
