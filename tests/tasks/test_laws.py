"""The laws the examples are drawn by: how often everything occurs, and that what should be independent is."""

import itertools
import math
from collections import Counter

import pytest
import torch

from swila.tasks import CDAR, IGNORE, MQAR, RegBench, SoftmaxRegression
from swila.tasks.examples import distinct, shuffled
from swila.tasks.streams import stream

PERMUTATIONS = list(itertools.permutations(range(3)))


def follows(found, law):
    """Whether observations follow a law ``{outcome: probability}``, by Pearson's statistic.

    Its bound is exceeded with a probability far below one in a million, whatever the degrees of freedom.
    """
    counts, total = Counter(found), len(found)
    assert min(law.values()) * total >= 10, "too few observations to tell"
    if not counts.keys() <= law.keys():
        return False
    statistic = sum((counts[x] - total * p) ** 2 / (total * p) for x, p in law.items())
    freedom = len(law) - 1
    return statistic < freedom + 8 * math.sqrt(2 * freedom) + 30


def uniform(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def pairs_of(outcomes):
    return uniform(itertools.product(outcomes, outcomes))


def order_of(values):
    """The permutation that values are in: the rank of each."""
    ranks = {value: rank for rank, value in enumerate(sorted(values))}
    return tuple(ranks[value] for value in values)


def successive(count, slots, power):
    """Probability of every ordered draw of slots, one after another without replacement, ``p(i) ∝ i^(power - 1)``."""
    weights = [(i + 1) ** (power - 1) for i in range(slots)]
    law = {}
    for drawn in itertools.permutations(range(slots), count):
        probability, left = 1.0, sum(weights)
        for slot in drawn:
            probability *= weights[slot] / left
            left -= weights[slot]
        law[drawn] = probability
    return law


def test_the_yardstick_can_fail():
    rng = torch.Generator().manual_seed(0)
    fair = torch.randint(6, (6000,), generator=rng).tolist()
    assert follows(fair, uniform(range(6)))
    assert not follows([*fair[:5500], *[0] * 500], uniform(range(6)))
    assert not follows([*fair, 6], uniform(range(6)))


def test_distinct_and_shuffled():
    drawn = distinct(6000, 2, 4, stream(0, "a")).tolist()
    assert follows(map_tuples(drawn), uniform(itertools.permutations(range(4), 2)))
    rows = shuffled((6000, 2, 3), stream(0, "b")).tolist()
    assert follows([tuple(map(tuple, row)) for row in rows], pairs_of(PERMUTATIONS))


def map_tuples(rows):
    return [tuple(row) for row in rows]


class Reading:
    """An example of CDAR as its parts, in the order in which they stand there."""

    def __init__(self, task, inputs, labels):
        C, K = task.num_contexts, task.num_keys
        blocks = [inputs[c * (1 + 2 * K) : (c + 1) * (1 + 2 * K)] for c in range(C)]
        self.contexts = tuple(block[0] for block in blocks)
        self.keys = [tuple(block[1::2]) for block in blocks]
        self.values = [dict(zip(block[1::2], block[2::2], strict=True)) for block in blocks]
        zone = C * (1 + 2 * K)
        self.asked, self.slots, groups = [], [], []
        for t in range(zone, task.length):
            if 1 <= inputs[t] <= task.pool:
                groups.append((inputs[t], []))
            elif labels[t] != IGNORE:
                groups[-1][1].append(inputs[t])
                self.slots.append((t - zone - len(groups)) // 2)
        self.groups = tuple(name for name, _ in groups)
        self.asked = [tuple(keys) for _, keys in groups]


@pytest.fixture(scope="module")
def recall():
    task = CDAR(32, 3, 3, 60)
    examples = task.examples(6000, "train", seed=1)
    rows = zip(examples.inputs.tolist(), examples.labels.tolist(), strict=True)
    return task, [Reading(task, *row) for row in rows]


def test_cdar_contexts_and_groups(recall):
    """Contexts come in any order, and are asked in any order, whatever the first was."""
    _, read = recall
    orders = [(order_of(x.contexts), order_of(x.groups)) for x in read]
    assert follows(orders, pairs_of(PERMUTATIONS))


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, 2), (1, 2)])
def test_cdar_pairs_have_an_order_of_their_own_in_each_context(recall, a, b):
    _, read = recall
    assert follows([(order_of(x.keys[a]), order_of(x.keys[b])) for x in read], pairs_of(PERMUTATIONS))


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, 2), (1, 2)])
def test_cdar_queries_have_an_order_of_their_own_in_each_group(recall, a, b):
    _, read = recall
    assert follows([(order_of(x.asked[a]), order_of(x.asked[b])) for x in read], pairs_of(PERMUTATIONS))


def test_cdar_queries_do_not_follow_the_order_of_the_pairs(recall):
    _, read = recall
    for position in range(3):
        orders = [(order_of(x.keys[x.contexts.index(x.groups[position])]), order_of(x.asked[position])) for x in read]
        assert follows(orders, pairs_of(PERMUTATIONS))


def test_cdar_keys_and_values(recall):
    """All tokens of their ranges, equally often; which key has the larger value is a matter of chance, and so is which
    context."""
    task, read = recall
    keys = range(4, 16)
    assert follows([tuple(sorted(x.keys[0])) for x in read], uniform(itertools.combinations(keys, 3)))
    assert all(set(x.keys[0]) == set(x.keys[1]) == set(x.keys[2]) for x in read)
    assert follows([x.values[0][x.keys[0][0]] for x in read], uniform(range(16, 32)))
    assert follows([x.values[2][x.keys[2][2]] for x in read], uniform(range(16, 32)))
    ranked = [order_of([x.values[0][key] for key in sorted(x.values[0])]) for x in read]
    assert follows(ranked, uniform(PERMUTATIONS))
    by_context = [order_of([x.values[c][min(x.values[0])] for c in range(3)]) for x in read]
    assert follows(by_context, uniform(PERMUTATIONS))
    assert task.pool == 3


def test_cdar_examples_do_not_depend_on_their_neighbours(recall):
    _, read = recall
    orders = [order_of(x.contexts) for x in read]
    assert follows(list(zip(orders[::2], orders[1::2], strict=True)), pairs_of(PERMUTATIONS))
    half = 512  # the first of each block
    assert follows(list(zip(orders[:half], orders[half : 2 * half], strict=True)), pairs_of(PERMUTATIONS))


def test_cdar_slots_follow_the_power_law():
    """The 4 slots of an example are a set of successive draws, in order of place."""
    task = CDAR(16, 2, 2, 24, power=0.3)
    assert task.num_slots == 6
    examples = task.examples(8000, "train")
    rows = zip(examples.inputs.tolist(), examples.labels.tolist(), strict=True)
    found = [tuple(Reading(task, *row).slots) for row in rows]
    law = Counter()
    for drawn, probability in successive(4, 6, 0.3).items():
        law[tuple(sorted(drawn))] += probability
    assert follows(found, law)
    assert not follows(found, uniform(law)), "which is not uniform"


def test_cdar_draws_its_contexts_from_a_pool():
    task = CDAR(32, 2, 2, 24, context_pool=4)
    inputs = task.examples(4000, "train").inputs
    found = list(zip(inputs[:, 0].tolist(), inputs[:, 5].tolist(), strict=True))
    assert follows(found, uniform(itertools.permutations(range(1, 5), 2)))


@pytest.fixture(scope="module")
def pairs():
    task = MQAR(16, 2, 14, power=0.3)
    examples = task.examples(8000, "train", seed=2)
    return examples.inputs, examples.labels


def test_mqar_keys_and_values(pairs):
    inputs, _ = pairs
    keys, values = inputs[:, 0:4:2].tolist(), inputs[:, 1:4:2].tolist()
    assert follows(map_tuples(keys), uniform(itertools.permutations(range(1, 8), 2)))
    assert follows(map_tuples(values), uniform(itertools.permutations(range(8, 16), 2)))
    both = [(order_of(k), order_of(v)) for k, v in zip(keys, values, strict=True)]
    assert follows(both, pairs_of([(0, 1), (1, 0)]))


def test_mqar_slots_are_given_out_as_drawn(pairs):
    """The first key has the slot drawn first, the second that drawn second."""
    inputs, labels = pairs
    zone = inputs[:, 4:]
    slots = [
        tuple(int((row == key).nonzero()[0, 0]) // 2 for key in keys)
        for row, keys in zip(zone, inputs[:, 0:4:2].tolist(), strict=True)
    ]
    assert follows(slots, successive(2, 5, 0.3))
    assert ((labels != IGNORE) == (inputs > 0))[:, 4:].all()


def test_mqar_random_filler_is_any_token():
    plain = MQAR(16, 2, 14).examples(2000, "train")
    filled = MQAR(16, 2, 14, random_filler=True).examples(2000, "train")
    empty = filled.labels[:, 4:] == IGNORE
    assert follows(filled.inputs[:, 4:][empty].tolist(), uniform(range(16)))
    assert (plain.inputs[:, 4:][plain.labels[:, 4:] == IGNORE] == 0).all()


@pytest.fixture(scope="module")
def clusters():
    """The cluster of every token, told exactly where there is no noise."""
    task = SoftmaxRegression(dim=4, length=6, clusters=3, noise=0.0)
    centres = torch.nn.functional.normalize(task.teacher().centres, dim=-1)
    inputs = task.examples(3000, "train").inputs
    distance = (inputs.unsqueeze(2) - centres).square().sum(-1)
    assert distance.amin(-1).max() < 1e-10
    return distance.argmin(-1).tolist()


def test_clusters_are_uniform_and_independent(clusters):
    for t in range(5):
        assert follows([(row[t], row[t + 1]) for row in clusters], pairs_of(range(3)))
    neighbours = zip(clusters[::2], clusters[1::2], strict=True)
    assert follows([(a[0], b[0]) for a, b in neighbours], pairs_of(range(3)))


def test_noise_of_the_inputs():
    """Of one cluster in many dims: the noise has the told spread, and is new for every token, dim and example."""
    task = SoftmaxRegression(dim=600, length=2, clusters=1, noise=0.5)
    centre = task.teacher().centres[0].double()
    x = task.examples(40, "train").inputs.double()
    lengths = (centre.square().sum() + 0.25 * 600).sqrt()  # of what was normalised, nearly the same for all
    noise = x * lengths - centre
    assert noise.std().item() == pytest.approx(0.5, rel=0.03)
    flat = torch.nn.functional.normalize(noise.flatten(0, 1), dim=-1)
    between = flat @ flat.T - torch.eye(80, dtype=torch.float64)
    assert between.abs().max() < 6 / math.sqrt(600), "tokens have noise of their own"


def test_teachers_are_standard_normal_and_independent():
    teacher = SoftmaxRegression(dim=64, clusters=64).teacher(5)
    parts = torch.stack([part.flatten() for part in teacher]).double()
    n = parts.shape[1]
    for part in parts:
        assert part.mean().abs() < 6 / math.sqrt(n)
        assert part.var().item() == pytest.approx(1, abs=6 * math.sqrt(2 / n))
        assert part.pow(4).mean().item() == pytest.approx(3, abs=6 * math.sqrt(96 / n))
    assert (torch.corrcoef(parts) - torch.eye(4)).abs().max() < 6 / math.sqrt(n)


def test_the_teacher_belongs_to_the_seed_not_to_the_split():
    """Centres are the same in all splits: the inputs without noise are."""
    task = SoftmaxRegression(dim=4, length=20, clusters=3, noise=0.0)
    points = [task.examples(5, split).inputs.flatten(0, 1).unique(dim=0) for split in ("train", "val", "test")]
    assert all(torch.equal(points[0], other) for other in points[1:])
    assert not torch.equal(points[0], task.examples(5, "train", seed=1).inputs.flatten(0, 1).unique(dim=0))


def test_strings_of_a_problem_are_independent_walks():
    """Every state has two edges: the first symbols of two strings are independent, and so are two steps of one."""
    task = RegBench((5, 5), (4, 6), (2, 2), (2, 2), (3, 3), symbols=6, held_out=5)
    examples = task.examples(1500, "train")
    firsts, steps = [], []
    for inputs, labels, legal in zip(
        examples.inputs.tolist(), examples.labels.tolist(), examples.legal.tolist(), strict=True
    ):
        start = [v for v in range(8) if legal[3] >> v & 1]  # after the separator
        firsts.append((start.index(inputs[0]), start.index(labels[3])))
        second = [v for v in range(8) if legal[0] >> v & 1]
        steps.append((start.index(inputs[0]), second.index(labels[0])))
    assert follows(firsts, pairs_of(range(2)))
    assert follows(steps, pairs_of(range(2)))
