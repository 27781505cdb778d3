"""Batches of examples in memory are a function of the step."""

import torch

from swila.experiments.loop.batches import ShuffledBatches, order_of_examples
from swila.tasks import CDAR
from swila.tasks.streams import stream


def test_every_epoch_has_every_example_once():
    order = order_of_examples(35, 8, steps=11, seed=1)
    assert order.shape == (11, 8)
    for epoch in range(2):
        seen = order[4 * epoch : 4 * epoch + 4].flatten().tolist()
        assert len(set(seen)) == 32
        assert set(seen) <= set(range(35))
    assert not torch.equal(order[:4], order[4:8])
    assert torch.equal(order_of_examples(35, 8, steps=5, seed=1), order[:5])
    later = order_of_examples(35, 8, steps=80, seed=1)
    assert set(later.flatten().tolist()) == set(range(35)), "what one epoch leaves out, another one has"


def test_orders_are_streams_of_their_own():
    orders = order_of_examples(16, 4, steps=12, seed=0).view(3, 16).tolist()
    assert len({tuple(order) for order in orders}) == 3
    expected = [torch.randperm(16, generator=stream(0, "order", epoch)).tolist() for epoch in range(3)]
    assert orders == expected
    assert order_of_examples(16, 4, steps=12, seed=1).view(3, 16).tolist() != orders


def test_a_counter_on_the_device_gives_the_same_batches():
    """As a captured graph reads them."""
    examples = CDAR(32, 2, 2, 24).examples(10, "train")
    batches = ShuffledBatches(examples, batch_size=4, steps=5, seed=3)
    assert batches.steps_per_epoch == 2
    counter = torch.zeros(1, dtype=torch.long)
    for step in range(5):
        batch, again = batches.batch(step), batches.batch_at(counter)
        assert batch.inputs.shape == (4, 24)
        assert torch.equal(batch.inputs, examples.inputs[batches.order[step].long()])
        for name in ("inputs", "labels", "context"):
            assert torch.equal(getattr(batch, name), getattr(again, name))
        counter += 1
