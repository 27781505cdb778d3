"""Updates against a plain loop over whole batches with torch's own loss, clipping and AdamW."""

import itertools
import math

import pytest
import torch
from small_runs import ALONE, BATCH, STEPS, copy_of, model_of, same_bits, sequences_of, small, updates_of
from torch.nn import functional as F

from swila.data import ShuffledSequences
from swila.layers import collect_auxiliary_loss
from swila.pretraining.batches import Batches
from swila.pretraining.stability import LossAverage
from swila.pretraining.updates import Updates

SMOOTH = "optimizer.eps=0.01"  # AdamW divides by |gradient| + eps: rounding must not decide the sign of an update
BALANCED = {"balance_marginal": 0.5, "balance_conditional": 0.3}


def run(updates, steps, average=None):
    average = average or LossAverage()
    return [updates.run(step, average) for step in range(steps)]


def weights(updates):
    return copy_of(updates.model.named_parameters())


def separate_documents(batch):
    """Inputs and labels of each packed document as a row of its own."""
    bounds = batch.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        yield batch.input_ids[:, start:end], batch.labels[:, start:end]


def plain_loop(recipe, data, steps):
    """Losses, gradient norms and weights of a loop that knows neither micro-batches nor packing."""
    packing = recipe.data.packing
    order = ShuffledSequences(sequences_of(data, packing=packing), recipe.seed)
    model = model_of(recipe)
    options = recipe.optimizer
    adamw = torch.optim.AdamW(
        model.parameters(), options.lr, options.betas, options.eps, options.weight_decay, fused=False
    )
    losses, norms = [], []
    for step in range(steps):
        batch = order.batch(order.indices(step * BATCH, step * BATCH + BATCH))
        parts = [batch[:2]] if packing == "stream" else list(separate_documents(batch))
        total, count = torch.zeros(()), 0
        for inputs, labels in parts:
            logits = model(inputs).logits.flatten(0, 1)
            total = total + F.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=-100)
            count += (labels != -100).sum().item()
        loss = total / count
        (loss + collect_auxiliary_loss(model)).backward()
        clip = math.inf if options.clip is None else options.clip
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        warm, length = recipe.schedule.warmup_steps, STEPS - recipe.schedule.warmup_steps
        share = (step + 1) / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / length))
        for group in adamw.param_groups:
            group["lr"] = options.lr * share
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses, norms, copy_of(model.named_parameters())


@pytest.mark.parametrize("mixer", ["attention", "deltanet"])
@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("clip", ["0.5", "none"])
def test_updates_are_those_of_a_plain_loop(data, mixer, packing, clip):
    recipe = small(SMOOTH, f"data.packing={packing}", f"optimizer.clip={clip}", mixer=mixer)
    updates = updates_of(recipe, data)
    found = run(updates, 4)
    losses, norms, expected = plain_loop(recipe, data, 4)
    assert [update.loss for update in found] == pytest.approx(losses, rel=1e-6)
    assert [update.gradient_norm for update in found] == pytest.approx(norms, rel=1e-5)
    assert min(norms) > 0.5, "clipping has an effect"
    for name, weight in weights(updates).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=2e-6)
    assert all(update.bad is None and not update.stop and update.auxiliary_loss == 0 for update in found)


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_micro_batches_do_not_change_an_update(data, packing):
    results = {}
    for micro_batch in (4, 2, 1):
        settings = (SMOOTH, f"data.packing={packing}", f"execution.micro_batch={micro_batch}")
        updates = updates_of(small(*settings, mixer="deltanet"), data)
        results[micro_batch] = run(updates, 3), weights(updates)
    found, expected = results[4]
    for micro_batch in (2, 1):
        others, changed = results[micro_batch]
        for update, other in zip(found, others, strict=True):
            assert other.loss == pytest.approx(update.loss, rel=1e-6)
            assert other.gradient_norm == pytest.approx(update.gradient_norm, rel=1e-5)
        for name, weight in changed.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=2e-6)


def test_micro_batches_count_by_their_labels(data):
    """Packed sequences have different numbers of labels: the loss is no mean of means."""
    recipe = small("data.packing=documents", "execution.micro_batch=1")
    updates = updates_of(recipe, data)
    batch = updates.batches.batch(0)
    with torch.no_grad():
        means, counts = [], []
        for micro in updates.batches.micro_batches(batch):
            tokens = micro.tokens
            out = updates.model(tokens.input_ids, shift_labels=tokens.labels, cu_seqlens=tokens.cu_seqlens)
            means.append(out.loss.item())
            counts.append((tokens.labels != -100).sum().item())
    assert len(set(counts)) > 1
    expected = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    assert batch.labels == sum(counts)
    assert updates.run(0, LossAverage()).loss == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(sum(means) / len(means), rel=1e-4)


def test_the_load_balancing_loss_is_part_of_the_gradient_and_not_of_the_loss(data):
    recipe = small(SMOOTH, "execution.micro_batch=4", "optimizer.clip=none", mixer="swila", **BALANCED)
    updates = updates_of(recipe, data)
    found = run(updates, 2)
    losses, norms, expected = plain_loop(recipe, data, 2)
    assert [update.loss for update in found] == pytest.approx(losses, rel=1e-6)
    assert [update.gradient_norm for update in found] == pytest.approx(norms, rel=1e-5)
    for name, weight in weights(updates).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=2e-6)
    unbalanced = updates_of(small(SMOOTH, "execution.micro_batch=4", "optimizer.clip=none", mixer="swila"), data)
    assert unbalanced.run(0, LossAverage()).gradient_norm != pytest.approx(norms[0], rel=1e-4)


def test_the_auxiliary_loss_is_the_mean_over_micro_batches(data):
    recipe = small("execution.micro_batch=2", mixer="swila", **BALANCED)
    updates = updates_of(recipe, data)
    found = []
    for micro in updates.batches.micro_batches(updates.batches.batch(0)):
        updates.model(micro.tokens.input_ids)
        found.append(collect_auxiliary_loss(updates.model).item())
    assert found[0] != found[1]
    assert updates.run(0, LossAverage()).auxiliary_loss == pytest.approx(sum(found) / 2, rel=1e-6)


def test_the_learning_rate_is_that_of_the_step(data):
    recipe = small("schedule.schedule=constant")
    updates = updates_of(recipe, data)
    assert [updates.run(step, LossAverage()).lr for step in (0, 1, 5)] == [0.005, 0.01, 0.01]
    resumed = updates_of(recipe, data)
    before = weights(resumed)
    resumed.run(0, LossAverage())
    largest = max((weights(resumed)[name] - x).abs().max().item() for name, x in before.items())
    assert largest == pytest.approx(0.005, rel=0.1), "the first update of AdamW is the learning rate"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_loss_that_is_not_finite_changes_nothing(data, value, precision):
    updates = updates_of(small(f"precision={precision}"), data)
    run(updates, 1)
    with torch.no_grad():
        updates.model.lm_head.weight[3, 0] = value
    before, moments = weights(updates), updates.optimizer.state()
    kept = {kind: copy_of(moments[kind]) for kind in ("exp_avg", "exp_avg_sq")}
    update = updates.run(1, LossAverage())
    assert update.bad == "its loss is nan"
    for name, weight in weights(updates).items():
        assert torch.equal(weight.nan_to_num(1, 2, 3), before[name].nan_to_num(1, 2, 3))
    assert all(same_bits(kept[kind], copy_of(updates.optimizer.state()[kind])) for kind in kept)
    assert all(p.grad is None for p in updates.model.parameters())


def test_a_gradient_that_is_not_finite_is_bad(data):
    updates = updates_of(small(), data)
    before = weights(updates)
    updates.model.model.embed_tokens.weight.register_hook(lambda gradient: gradient * math.inf)
    update = updates.run(0, LossAverage())
    assert update.bad == "the norm of its gradient is nan"
    assert math.isfinite(update.loss)
    assert same_bits(weights(updates), before)


def test_an_exploding_loss_is_bad_and_the_next_update_is_as_if_it_had_not_been(data):
    recipe = small("stability.max_loss_increase=0.5")
    updates, without = updates_of(recipe, data), updates_of(recipe, data)
    before = weights(updates)
    update = updates.run(0, LossAverage(2.0, 20))
    assert update.bad == f"its loss {update.loss:.3f} exceeds the average 2.000 of recent updates by more than 0.5"
    assert same_bits(weights(updates), before)
    assert updates.run(1, LossAverage()) == without.run(1, LossAverage())
    assert same_bits(weights(updates), weights(without))


def test_a_request_to_stop_is_passed_on(data):
    updates = updates_of(small(), data)
    assert updates.run(0, LossAverage(), stop=True).stop
    assert not updates.run(1, LossAverage()).stop


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_masters(data):
    single, half = updates_of(small(SMOOTH), data), updates_of(small(SMOOTH, "precision=bfloat16"), data)
    dtypes = []
    half.model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))
    expected, found = run(single, 3), run(half, 3)
    assert set(dtypes) == {torch.bfloat16}
    for a, b in zip(expected, found, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=0.01)
        assert b.loss != a.loss
        assert b.gradient_norm == pytest.approx(a.gradient_norm, rel=0.05)
    masters = half.optimizer.state()["weights"]
    assert any(not torch.equal(x, x.bfloat16().float()) for x in masters.values())


@pytest.mark.parametrize(("setting", "recomputed"), [("all", [1, 1]), ("2", [0, 1]), ("1", [1, 1]), ("3", [0, 0])])
def test_recomputed_activations_do_not_change_an_update(data, setting, recomputed):
    def updates(which):
        recipe = small(f"execution.activation_checkpointing={which}", mixer="swila", router_noise=True, **BALANCED)
        return updates_of(recipe, data)

    expected, found = updates("none"), updates(setting)
    calls = []
    for i, block in enumerate(found.model.model.layers):
        block.mlp.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    assert run(found, 2) == run(expected, 2)
    assert same_bits(weights(found), weights(expected))
    micro_batches = 2 * BATCH // 2
    assert [calls.count(i) for i in range(2)] == [micro_batches * (1 + again) for again in recomputed]


def seeds(updates, steps):
    """Seed of the default generator at each forward call."""
    found = []
    hook = updates.model.register_forward_pre_hook(lambda *_: found.append(torch.initial_seed()))
    run(updates, steps)
    hook.remove()
    return found


def test_random_numbers_depend_on_seed_step_and_position_alone(data):
    recipe = small("execution.micro_batch=1", mixer="swila", router_noise=True)
    first, second = updates_of(recipe, data), updates_of(recipe, data)
    torch.manual_seed(1)
    expected = seeds(first, 2)
    torch.manual_seed(2)
    torch.rand(7)
    assert seeds(second, 2) == expected
    assert same_bits(weights(first), weights(second))
    assert len(set(expected)) == 2 * BATCH
    assert not set(expected) & set(seeds(updates_of(small("execution.micro_batch=1", "seed=1"), data), 2))
    pairs = seeds(updates_of(small("execution.micro_batch=2"), data), 2)
    assert pairs == expected[::2], "the position of the first sequence counts"
    order = ShuffledSequences(sequences_of(data), recipe.seed)
    later = Updates(first.model, first.optimizer, Batches(order, BATCH, 1, rank=1, ranks=2), recipe, ALONE)
    assert seeds(later, 2) == [*expected[2:4], *expected[6:8]], "the number of ranks does not count"


def test_noise_differs_between_steps(data):
    """The same batch and weights at another step have another loss, with noise only."""
    losses = {}
    for noise in (False, True):
        recipe = small(mixer="swila", router_noise=noise)
        updates = updates_of(recipe, data)
        batch = updates.batches.batch(0)
        updates.batches.batch = lambda step, batch=batch: batch
        updates.optimizer.step = lambda lr: None
        losses[noise] = [updates.run(step, LossAverage()).loss for step in (0, 0, 1)]
    assert losses[False][0] == losses[False][1] == losses[False][2]
    assert losses[True][0] == losses[True][1] != losses[True][2]


@pytest.mark.parametrize(("stop", "failed"), [(True, False), (False, True), (False, False)])
def test_wishes_of_a_rank_reach_all(data, stop, failed):
    update = updates_of(small(), data).run(0, LossAverage(), stop, failed)
    assert (update.stop, update.failed) == (stop, failed)
