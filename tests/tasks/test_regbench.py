"""RegBench: every problem is read by an independent walker, every law compared with the one that is written down."""

import dataclasses
import itertools
import json
import random
from collections import Counter, defaultdict

import pytest
import torch
import torch.utils.data

from swila.tasks import IGNORE, AutomatonExamples, RegBench, legality, ngram_distribution, total_variation
from swila.tasks.automata import canonical
from swila.tasks.streams import stream

SMALL = RegBench((3, 5), (2, 4), (1, 2), (1, 4), (2, 6), symbols=6, held_out=40)
TIGHT = RegBench((3, 4), (2, 2), (1, 2), (2, 3), (1, 5), symbols=3, held_out=40)
SIZES = [RegBench(), SMALL, TIGHT, RegBench((4, 4), (3, 3), (3, 3), (2, 2), (1, 1), symbols=30)]


def edges_of(automaton):
    """What the automaton may do: token to target, by state."""
    return [{s + 1: target for s, target in enumerate(row) if target >= 0} for row in automaton.tolist()]


def read(task, edges, inputs, labels, context, legal):
    """Walk the automaton token by token; the strings that were read, the last one without its end."""
    state, strings, t = 0, [[]], 0
    while t < len(inputs) and inputs[t] != 0:
        if inputs[t] == task.separator:
            strings.append([])
            state = 0
        else:
            strings[-1].append(inputs[t])
            state = edges[state][inputs[t]]
        assert context[t] == state
        assert {v for v in range(32) if legal[t] >> v & 1} == set(edges[state])
        following = inputs[t + 1] if t + 1 < len(inputs) else 0
        assert labels[t] == (IGNORE if following == task.separator else following or labels[t])
        assert labels[t] == IGNORE or labels[t] in edges[state]
        t += 1
    assert t >= 1
    assert labels[t - 1] != IGNORE, "the last token of a problem is a symbol, and known as a label only"
    strings[-1].append(labels[t - 1])
    padding = len(inputs) - t
    rest = [part[t:] for part in (inputs, labels, context, legal)]
    assert rest == [[0] * padding, [IGNORE] * padding, [-1] * padding, [0] * padding]
    return strings


def rows(examples):
    return zip(*(getattr(examples, field.name).tolist() for field in dataclasses.fields(examples)), strict=True)


def same_apart_from_padding(few, many):
    T = few.inputs.shape[1]
    first = many.take(slice(len(few)))
    assert (first.inputs[:, T:] == 0).all()
    assert (first.labels[:, T:] == IGNORE).all()
    return all(torch.equal(getattr(few, f.name), getattr(first, f.name)[:, :T]) for f in dataclasses.fields(few))


def is_uniform(values, low, high, tolerance):
    counts = Counter(values)
    assert set(counts) == set(range(low, high + 1))
    shares = [count / len(values) for count in counts.values()]
    return max(abs(share * (high - low + 1) - 1) for share in shares) < tolerance


@pytest.fixture(scope="module")
def many():
    return RegBench().automata(4000, "train"), RegBench().examples(4000, "train")


@pytest.fixture(scope="module")
def test_problems():
    return RegBench().examples(500, "test")


def test_the_example_of_the_documentation():
    edges = [{3: 1, 5: 2}, {2: 0}, {3: 1}]
    inputs, labels = [3, 2, 5, 7, 5, 3, 2, 7, 3], [2, 5, IGNORE, 5, 3, 2, IGNORE, 3, 2]
    context, legal = [1, 0, 2, 0, 2, 1, 0, 0, 1], [4, 40, 8, 40, 8, 4, 40, 40, 4]
    assert read(SMALL, edges, inputs, labels, context, legal) == [[3, 2, 5], [5, 3, 2], [3, 2]]


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("task", SIZES, ids=str)
def test_every_problem_makes_sense(task, split):
    count = 40 if task.length > 100 or split != "train" else 300
    examples, automata = task.examples(count, split, seed=1), task.automata(count, split, seed=1)
    assert isinstance(examples, AutomatonExamples)
    assert {part.dtype for part in (examples.inputs, examples.labels, examples.context)} == {torch.int64}
    assert examples.legal.dtype == torch.int32
    longest = 0
    for automaton, row in zip(automata, rows(examples), strict=True):
        strings = read(task, edges_of(automaton), *row)
        assert task.strings[0] <= len(strings) <= task.strings[1]
        assert all(task.string_length[0] <= len(string) <= task.string_length[1] for string in strings)
        longest = max(longest, sum(map(len, strings)) + len(strings) - 2)
    assert examples.inputs.shape == (count, longest)
    assert longest <= task.length


@pytest.mark.parametrize("task", SIZES, ids=str)
def test_automata_are_well_formed(task):
    automata = task.automata(40, "train")
    assert automata.shape == (40, task.states[1], task.symbols)
    for automaton in automata:
        edges = edges_of(automaton)
        used = [state for state, out in enumerate(edges) if out]
        assert used == list(range(len(used)))
        assert task.states[0] <= len(used) <= task.states[1]
        assert len({symbol for out in edges for symbol in out}) <= task.alphabet[1]
        for state in used:
            targets = list(edges[state].values())
            assert task.edges[0] <= len(targets) <= task.edges[1]
            assert len(set(targets)) == len(targets)
            assert state not in targets
            assert set(targets) <= set(used)


def written_law(rng):
    """An automaton as section 2.1 of the notes has it, one draw after another."""
    n, alphabet = rng.randint(4, 12), rng.sample(range(18), rng.randint(4, 18))
    edges = []
    for state in range(n):
        m = rng.randint(1, 3)
        others = [other for other in range(n) if other != state]
        edges.append(dict(zip(rng.sample(alphabet, m), rng.sample(others, m), strict=True)))
    return edges


def test_the_law_of_automata(many):
    legal = many[0] >= 0
    states, degrees = legal.any(2).sum(1), legal.sum(2)
    assert is_uniform(states.tolist(), 4, 12, 0.2)
    assert is_uniform(degrees[degrees > 0].tolist(), 1, 3, 0.03)
    assert is_uniform(legal.nonzero()[:, 2].tolist(), 0, 17, 0.1)
    rng = random.Random(0)
    expected = Counter(len({symbol for out in written_law(rng) for symbol in out}) for _ in range(20000))
    used = Counter(legal.any(1).sum(1).tolist())
    assert sum(abs(used[size] / 4000 - expected[size] / 20000) for size in range(19)) / 2 < 0.04


def test_the_law_of_alphabets_and_targets():
    legal = (automata := RegBench((12, 12), (4, 7), (3, 3)).automata(2000, "train")) >= 0
    alphabet = legal.any(1)
    assert is_uniform(alphabet.sum(1).tolist(), 4, 7, 0.15)
    assert is_uniform(alphabet.nonzero()[:, 1].tolist(), 0, 17, 0.15)
    _, state, symbol = legal.nonzero().T
    target = automata[legal]
    assert is_uniform(target[state == 0].tolist(), 1, 11, 0.15)
    assert is_uniform(target[state == 11].tolist(), 0, 10, 0.15)
    assert is_uniform(target[symbol == 4].tolist(), 0, 11, 0.2)


def test_the_law_of_problems(many):
    examples = many[1]
    tokens = (examples.inputs > 0).sum(1) + 1
    scored = (examples.labels != IGNORE).sum(1)
    assert abs(tokens.double().mean() - 377) < 5
    assert abs(scored.double().mean() - 363) < 5
    assert abs(tokens.double().quantile(0.99) - 589) < 12
    assert 640 < tokens.max() <= 949
    lengths, counts = [], []
    for row, last in zip(examples.inputs.tolist(), tokens.tolist(), strict=True):
        ends = [-1, *(t for t, token in enumerate(row) if token == 19), last]
        lengths += [end - start - 1 for start, end in itertools.pairwise(ends)]
        counts.append(len(ends) - 1)
    assert is_uniform(counts, 10, 19, 0.25)
    assert is_uniform(lengths, 1, 49, 0.15)
    where = examples.labels != IGNORE
    mask = examples.legal_mask(20)[where]
    rank = mask.cumsum(1).gather(1, examples.labels[where].unsqueeze(1)).squeeze(1)
    degree = mask.sum(1)
    for edges in (1, 2, 3):
        assert is_uniform(rank[degree == edges].tolist(), 1, edges, 0.02)


def reachable(edges):
    seen, waiting = {0}, [0]
    while waiting:
        for target in edges[waiting.pop()].values():
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return len(seen)


def test_how_many_states_matter(many):
    automata = many[0]
    drawn, smallest = (automata >= 0).any(2).sum(1), (canonical(automata) >= 0).any(2).sum(1)
    met = torch.tensor([reachable(edges_of(automaton)) for automaton in automata])
    assert abs(met.double().mean() - 6.9) < 0.15
    assert abs((met == drawn).double().mean() - 0.5) < 0.03
    assert (smallest <= met).all()
    assert abs((smallest < met).double().mean() - 0.04) < 0.015
    assert abs((smallest < 4).double().mean() - 0.046) < 0.015


def same_language(a, b):
    """Walk both at once: whatever they have both read, they have the same symbols."""
    seen, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        if a[i].keys() != b[j].keys():
            return False
        for pair in ((a[i][symbol], b[j][symbol]) for symbol in a[i]):
            if pair not in seen:
                seen.add(pair)
                waiting.append(pair)
    return True


def automaton(states, *edges):
    made = torch.full((states, 3), -1)
    for state, symbol, target in edges:
        made[state, symbol] = target
    return made


def test_keys_by_hand():
    two = automaton(4, (0, 0, 1), (0, 2, 2), (1, 1, 0), (2, 0, 0))
    renamed = automaton(4, (0, 0, 3), (0, 2, 1), (3, 1, 0), (1, 0, 0), (2, 2, 0))
    merged = automaton(4, (0, 0, 1), (0, 2, 2), (1, 1, 3), (2, 0, 0), (3, 0, 1), (3, 2, 2))
    other_symbol = automaton(4, (0, 0, 1), (0, 1, 2), (1, 1, 0), (2, 0, 0))
    other_target = automaton(4, (0, 0, 1), (0, 2, 2), (1, 1, 2), (2, 0, 0))
    other_start = automaton(4, (1, 0, 0), (1, 2, 2), (0, 1, 1), (2, 0, 1))
    keys = canonical(torch.stack([two, renamed, merged, other_symbol, other_target, other_start]))
    assert torch.equal(keys[0], two)
    assert torch.equal(keys[1], two)
    assert torch.equal(keys[2], two)
    assert len({tuple(key.flatten().tolist()) for key in keys}) == 4


def test_keys_tell_languages_apart():
    drawn = TIGHT._automata(torch.Generator().manual_seed(0))[:250]
    keys = [tuple(key) for key in canonical(drawn).flatten(1).tolist()]
    edges = [edges_of(one) for one in drawn]
    pairs = list(itertools.combinations(range(250), 2))
    same = [same_language(edges[i], edges[j]) for i, j in pairs]
    assert [keys[i] == keys[j] for i, j in pairs] == same
    assert 100 < sum(same) < len(same) / 2


def test_keys_do_not_depend_on_names(many):
    automata = many[0][:500]
    order = torch.cat([torch.zeros(500, 1), 1 + torch.rand(500, 11, generator=stream(0)).argsort(1)], 1).long()
    places = order.argsort(1)
    renamed = automata.gather(1, order.unsqueeze(2).expand_as(automata))
    renamed = torch.where(renamed < 0, -1, places.gather(1, renamed.clamp_min(0).flatten(1)).view_as(renamed))
    assert not torch.equal(automata, renamed)
    assert torch.equal(canonical(automata), canonical(renamed))
    assert torch.equal(canonical(canonical(automata)), canonical(automata))
    assert all(same_language(edges_of(a), edges_of(b)) for a, b in zip(automata, canonical(automata), strict=True))


@pytest.mark.parametrize(("task", "train"), [(RegBench(), 2000), (TIGHT, 300)], ids=["full", "tight"])
def test_no_automaton_twice(task, train):
    raw = canonical(task._automata(stream(0, "any")))
    if task is TIGHT:
        assert len({tuple(key) for key in raw.flatten(1).tolist()}) < 300, "there is something to do"
    counts = {"train": train, "val": task.held_out, "test": task.held_out}
    keys = torch.cat([canonical(task.automata(count, split)).flatten(1) for split, count in counts.items()])
    assert len({tuple(key) for key in keys.tolist()}) == sum(counts.values())


@pytest.mark.parametrize("task", [RegBench(), TIGHT], ids=["full", "tight"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_more_problems_begin_with_the_same(task, split):
    counts = {"train": (200, 300), "val": (20, 40)} if task is TIGHT else {"train": (1000, 2500), "val": (20, 400)}
    few, more = (task.examples(count, split) for count in counts[split])
    assert few.inputs.shape[1] < more.inputs.shape[1]
    assert same_apart_from_padding(few, more)
    assert torch.equal(*(task.automata(count, split)[: len(few)] for count in counts[split]))


def test_seeds_splits_and_the_global_generator():
    task = SMALL
    before = torch.get_rng_state()
    a = task.examples(40, "train", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    b = task.examples(40, "train", seed=3)
    torch.set_rng_state(before)
    assert all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    others = [("val", 3), ("test", 3), ("train", 4)]
    assert not any(torch.equal(task.automata(40, "train", 3), task.automata(40, *other)) for other in others)
    tokens = RegBench().examples(40, "train", 3).inputs
    tokens = {tuple(row) for row in tokens[:, :20].tolist()}
    for split, seed in others:
        assert tokens.isdisjoint(map(tuple, RegBench().examples(40, split, seed).inputs[:, :20].tolist()))


def test_json():
    for task in SIZES:
        back = RegBench(**json.loads(json.dumps(dataclasses.asdict(task))))
        assert back == task
        assert hash(back) == hash(task)
        assert torch.equal(back.examples(3, "test").inputs, task.examples(3, "test").inputs)


def test_sizes():
    task = RegBench()
    assert (task.vocab_size, task.separator, task.length) == (20, 19, 948)
    short = RegBench((4, 4), (4, 4), (1, 1), (2, 2), (3, 3), held_out=1).examples(5, "train")
    assert short.inputs.shape == (5, 6)
    assert (short.inputs == 19).nonzero().tolist() == [[i, 3] for i in range(5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"symbols": 31}, "symbols must be from 1 to 30, got 31"),
        ({"edges": (0, 3)}, r"edges must be a range \(low, high\) from 1 on, got \(0, 3\)"),
        ({"edges": 3}, "edges must be a range .* got 3"),
        ({"states": (3, 12)}, "states must be a range .* from 4 on: each has up to 3 edges to different others, got"),
        ({"states": (12, 4)}, r"states must be a range .* got \(12, 4\)"),
        ({"states": (4, 8, 12)}, r"states must be a range .* got \(4, 8, 12\)"),
        ({"alphabet": (2, 18)}, "alphabet must be a range .* from 3 on: a state's edges have different symbols, got"),
        ({"alphabet": (4, 19)}, r"alphabet must be at most symbols = 18, got \(4, 19\)"),
        ({"strings": (0, 3)}, r"strings must be a range .* got \(0, 3\)"),
        ({"strings": (1.5, 3)}, r"strings must be a range .* got \(1.5, 3\)"),
        ({"strings": (1, 3)}, r"string_length must be a range .* from 2 on: there must be a symbol to predict, got"),
        ({"held_out": 0}, "held_out must be at least 1, got 0"),
    ],
)
def test_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        RegBench(**arguments)


@pytest.mark.parametrize(
    ("task", "count", "split", "message"),
    [
        (RegBench(), 501, "test", "count must be at most held_out = 500 for test, got 501"),
        (RegBench(), 501, "val", "count must be at most held_out = 500 for val, got 501"),
        (RegBench(), 0, "train", "count must be at least 1, got 0"),
        (RegBench(), 5, "valid", "split must be one of train, val and test, got 'valid'"),
        (TIGHT, 100_000, "train", r"count is 100000 for train, but no more than \d+ automata were found for RegBench"),
    ],
)
def test_impossible_requests(task, count, split, message):
    with pytest.raises(ValueError, match=message):
        task.examples(count, split)


def test_parts_of_examples_keep_everything():
    examples = SMALL.examples(30, "train")
    rows = torch.tensor([4, 2])
    taken = examples.take(rows).to("cpu")
    assert isinstance(taken, AutomatonExamples)
    assert torch.equal(taken.legal, examples.legal[rows])
    joined = AutomatonExamples.join([examples.take(slice(0, 10)), examples.take(slice(10, 30))])
    assert all(torch.equal(getattr(joined, f.name), getattr(examples, f.name)) for f in dataclasses.fields(joined))
    inputs, labels = next(iter(torch.utils.data.DataLoader(examples, batch_size=4)))
    assert torch.equal(inputs, examples.inputs[:4])
    assert torch.equal(labels, examples.labels[:4])


def test_legality_by_hand(device):
    legal = torch.tensor([[0b0110] * 4, [0, 1 << 30, 0b1000, 1 << 30]], dtype=torch.int32, device=device)
    predictions = torch.tensor([[1, 2, 3, 0], [1, 30, IGNORE, 62]], device=device)
    assert legality(predictions, legal).tolist() == [[True, True, False, False], [False, True, False, False]]
    examples = AutomatonExamples(*[legal] * 4)
    assert examples.legal_mask(5)[0, 0].tolist() == [False, True, True, False, False]
    assert examples.legal_mask(100).nonzero().tolist() == [
        *([0, t, v] for t in range(4) for v in (1, 2)),
        [1, 1, 30],
        [1, 2, 3],
        [1, 3, 30],
    ]


def test_total_variation_by_hand(device):
    p = torch.tensor([[0, 0.5, 0.5, 0], [0, 1, 0, 0], [0.2, 0.3, 0.1, 0.4], [0, 0, 0, 1]], device=device)
    legal = torch.tensor([0b0110, 0b0110, 0b1010, 0b0110], dtype=torch.int32, device=device)
    expected = torch.tensor([0, 0.5, (0.2 + 0.2 + 0.1 + 0.1) / 2, 1], device=device)
    torch.testing.assert_close(total_variation(p, legal), expected)
    doubled = total_variation(p.double().view(2, 2, 4), legal.view(2, 2))
    torch.testing.assert_close(doubled, expected.double().view(2, 2))


def test_metrics_in_a_cuda_graph(device):
    if device == "cpu":
        pytest.skip("needs --device cuda")
    examples = SMALL.examples(40, "train").to(device)
    logits = torch.randn(*examples.inputs.shape, 8, device=device)

    def metrics():
        return legality(logits.argmax(-1), examples.legal), total_variation(logits.softmax(-1), examples.legal)

    metrics()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = metrics()
    logits.normal_()
    graph.replay()
    for got, expected in zip(captured, metrics(), strict=True):
        torch.testing.assert_close(got, expected)


def naive_ngrams(inputs, order, vocab_size, separator):
    """For every token, all contexts that it makes longer, each with what followed it so far."""
    seen, text, predictions = defaultdict(Counter), [separator], []
    for token in inputs:
        if token == separator:
            text = [separator]
        else:
            for k in range(min(order - 1, len(text)) + 1):
                seen[tuple(text[len(text) - k :])][token] += 1
            text.append(token)
        longest = min(order - 1, len(text))
        known = (seen[tuple(text[len(text) - k :])] for k in range(longest, -1, -1))
        counts = next((c for c in known if c), Counter(range(1, separator)))
        predictions.append([counts[v] / counts.total() for v in range(vocab_size)])
    return predictions


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
def test_ngrams_against_counting_one_by_one(order):
    for task in (SMALL, TIGHT, RegBench()):
        examples = task.examples(12, "train")
        got = ngram_distribution(examples.inputs, order, task.vocab_size, task.separator)
        assert got.shape == (*examples.inputs.shape, task.vocab_size)
        for row, inputs in zip(got, examples.inputs, strict=True):
            inputs = inputs[inputs > 0].tolist()
            expected = torch.tensor(naive_ngrams(inputs, order, task.vocab_size, task.separator))
            torch.testing.assert_close(row[: len(inputs)], expected)


def test_ngrams_by_hand():
    p = ngram_distribution(torch.tensor([[3, 2, 5, 7, 3, 2], [7, 7, 4, 0, 0, 0]]), 3, 8, 7)
    third = 1 / 3
    expected = torch.zeros(9, 8)
    expected[0, 3] = expected[3, 3] = expected[4, 2] = expected[5, 5] = 1
    expected[1, [2, 3]] = 0.5
    expected[2, [2, 3, 5]] = third
    expected[6:8, 1:7] = 1 / 6
    expected[8, 4] = 1
    torch.testing.assert_close(torch.cat([p[0], p[1, :3]]), expected)
    with pytest.raises(ValueError, match="order must be at least 1, got 0"):
        ngram_distribution(torch.ones(1, 1, dtype=torch.long), 0, 8, 7)


@pytest.mark.parametrize(
    ("order", "accuracy", "later", "distance"),
    [
        (1, 0.48, 0.49, 0.63),
        (2, 0.83, 0.85, 0.29),
        (3, 0.935, 0.96, 0.20),
        (4, 0.953, 0.98, 0.22),
        (6, 0.956, 0.99, 0.28),
    ],
)
def test_what_counting_can_do(test_problems, order, accuracy, later, distance):
    p = ngram_distribution(test_problems.inputs, order, 20, 19)
    right = legality(p.argmax(-1), test_problems.legal)
    where = test_problems.labels != IGNORE
    assert abs(right[where].double().mean() - accuracy) < 0.01
    assert abs(right[:, 100:][where[:, 100:]].double().mean() - later) < 0.01
    assert abs(total_variation(p, test_problems.legal)[where].mean() - distance) < 0.01


def test_the_law_itself_is_perfect(test_problems):
    law = test_problems.legal_mask(20).float()
    law = law / law.sum(-1, keepdim=True)
    where = test_problems.labels != IGNORE
    assert legality(test_problems.labels, test_problems.legal)[where].all()
    assert legality(law.argmax(-1), test_problems.legal)[where].all()
    assert total_variation(law, test_problems.legal)[where].max() < 1e-6
    assert not test_problems.legal_mask(20)[..., [0, 19]].any()
