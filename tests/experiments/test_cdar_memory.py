"""Looking into models trained on CDAR."""

import pytest
import torch

from swila.experiments.cdar.memory import _not_written, kinds_of_tokens, memory_report
from swila.experiments.cdar.runs import make_runs
from swila.models import SyntheticModel
from swila.tasks import CDAR, IGNORE


@pytest.fixture
def task():
    return CDAR(vocab_size=32, num_contexts=3, num_keys=2, length=32)


def test_every_token_is_of_one_kind(task):
    examples = task.examples(5, "test")
    kinds = kinds_of_tokens(task, examples)
    assert (torch.stack(list(kinds.values())).sum(0) == 1).all()
    counts = {kind: where.sum(1).tolist() for kind, where in kinds.items()}
    assert counts["context"] == counts["value"] == counts["key"] == counts["query"] == [6] * 5
    assert (examples.labels[kinds["query"]] != IGNORE).all()
    after = kinds["empty place after a query"].nonzero()
    assert kinds["query"][after[:, 0], after[:, 1] - 1].all()


def test_all_names_of_a_pool_are_contexts():
    task = CDAR(vocab_size=64, num_contexts=3, num_keys=2, length=32, context_pool=8)
    kinds = kinds_of_tokens(task, task.examples(20, "test"))
    assert (kinds["context"].sum(1) == 6).all()
    assert (kinds["key"].sum(1) == 6).all()


def build(model, **more):
    torch.manual_seed(0)
    return SyntheticModel(make_runs("tiny", [model], seeds=[0], **more)[0].model).eval()


def test_a_memory_without_writes_of_values_is_empty(task):
    model, examples = build("temporal-swila"), task.examples(64, "test")
    layer = model.mixers[0]
    with torch.no_grad():
        layer.b_proj.down.weight.fill_(0.0)  # β = 1/2 everywhere
        before = model(examples.inputs)
    report = memory_report(model, task, examples, batch_size=24)
    whole = memory_report(model, task, examples, batch_size=64)
    assert report["tokens"]["other empty places"] == pytest.approx(whole["tokens"]["other empty places"])
    assert report["by_group"] == pytest.approx(whole["by_group"])
    assert set(report["tokens"]["value"]) == {"beta", "key_gate", "query_gate", "value_length"}
    assert report["tokens"]["value"]["beta"] == pytest.approx(0.5)
    assert set(report["without_writes"]) == {"value", "query", "empty place after a query", "other empty places"}
    assert len(report["by_group"]) == 3
    assert sum(report["by_group"]) / 3 == pytest.approx(report["accuracy"])
    with layer.changed(lambda operands: operands | {"beta": torch.zeros_like(operands["beta"])}), torch.no_grad():
        x = model.embedding(examples.inputs)
        assert (layer(model.blocks[0].mixer_norm(x))[0] == 0).all(), "nothing written, nothing read"
    with torch.no_grad():
        assert torch.equal(model(examples.inputs), before), "changed for a while only"


def test_lengths_of_values(task):
    model, examples, seen = build("swila"), task.examples(8, "test"), []
    with model.mixers[0].changed(lambda operands: seen.append(operands["v"]) or operands), torch.no_grad():
        model(examples.inputs)
    lengths = seen[0].square().sum(-1).sqrt()
    found = memory_report(model, task, examples)["tokens"]
    for kind, where in kinds_of_tokens(task, examples).items():
        assert found[kind]["value_length"] == pytest.approx(lengths[where].mean().item())


@pytest.mark.parametrize(("model", "layers"), [("deltanet", 1), ("swila", 2)])
def test_of_other_models_the_accuracy_alone(task, model, layers):
    report = memory_report(build(model, layers=[layers]), task, task.examples(4, "test"))
    assert set(report) == {"examples", "accuracy", "by_group"}


def recall_by_context(damping, shared, contexts=4, D=32, values=4096, rate=0.27, n=24):
    """Random keys and values in one linear memory for each context; after a query, its key is damped."""
    generator = torch.Generator().manual_seed(0)
    code = torch.randn(values, D, generator=generator)
    keys = torch.nn.functional.normalize(torch.randn(n, D, D, generator=generator), dim=-1)  # as many as dims
    ids = torch.randint(values, (n, contexts, D), generator=generator)
    W = torch.zeros(n, contexts, D, D)
    for t in range(D):
        error = code[ids[:, :, t]] - torch.einsum("ncvd,nd->ncv", W, keys[:, t])
        W += rate * error.unsqueeze(-1) * keys[:, None, None, t]
    found = []
    for c in range(contexts):
        right = []
        for t in torch.randperm(D, generator=generator).tolist():
            read = torch.einsum("ncvd,nd->ncv", W, keys[:, t])
            answer = (read[:, c] @ torch.nn.functional.normalize(code, dim=-1).T).argmax(-1)
            right.append((answer == ids[:, c, t]).double().mean().item())
            touched = slice(None) if shared else slice(c, c + 1)
            W[:, touched] -= damping * read[:, touched].unsqueeze(-1) * keys[:, None, None, t]
        found.append(sum(right) / D)
    return found


def test_damping_the_keys_that_were_asked_makes_room():
    """Why trained models write zeros after queries (docs/reproduction.md), without a model."""
    left_alone = recall_by_context(0.0, shared=True)
    assert max(left_alone) < 0.92
    damped = recall_by_context(0.22, shared=True)
    assert damped[0] < damped[1] < damped[2]
    assert min(damped[2:]) > 0.98
    assert max(recall_by_context(0.22, shared=False)) < 0.96, "in all memories, not only in the one that was asked"


def test_what_is_not_written_has_no_learning_rate():
    where = torch.tensor([[True, False, True]])
    kept, beta = torch.ones(1), torch.full((1, 3, 1, 2, 2), 0.7)
    found = _not_written(where, {"beta": beta, "v": kept})
    assert found["v"] is kept
    assert found["beta"].mean((2, 3, 4)).tolist() == [[0.0, pytest.approx(0.7), 0.0]]
