"""The language models: decoding, padding and packing give what the whole text gives; losses and gradients are right."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from language_models import NAMES, VOCABULARY, tiny, tokens, tolerance
from swila import SwiLAConfig, SwiLAModel
from swila.layers import Cache
from swila.ops import validation

pytestmark = pytest.mark.usefixtures("on_the_device")


@pytest.fixture(params=NAMES)
def model(request):
    return tiny(request.param)


def left_padded(rows, pad=0):
    """Rows of different lengths as a batch, padded on the left."""
    T = max(map(len, rows))
    ids = torch.stack([F.pad(row, (T - len(row), 0), value=pad) for row in rows])
    return ids, torch.stack([F.pad(torch.ones_like(row), (T - len(row), 0)) for row in rows])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@torch.no_grad()
def test_prefill_and_decode_is_the_whole(model, batch, padded):
    lengths = [21, 17, 30][:batch] if padded else [24] * batch
    rows = [tokens(n, seed=i) for i, n in enumerate(lengths)]
    ids, mask = left_padded(rows)
    if batch == 1 and padded:
        ids, mask = F.pad(ids, (4, 0)), F.pad(mask, (4, 0))
    T, start = ids.shape[1], ids.shape[1] - 9
    given = {"attention_mask": mask[:, :start]} if padded else {}
    out = model(ids[:, :start], use_cache=True, **given)
    parts, cache = [out.logits], out.past_key_values
    for t in range(start, T):
        given = {"attention_mask": mask[:, : t + 1]} if padded else {}
        parts.append(model(ids[:, t : t + 1], past_key_values=cache, **given).logits)
    found = torch.cat(parts, 1)
    assert cache.get_seq_length() == T
    for i, row in enumerate(rows):
        assert_close(found[i, T - len(row) :], model(row[None]).logits[0], **tolerance())


@torch.no_grad()
def test_packed_is_separate(model):
    rows = [tokens(n, seed=n) for n in (1, 9, 4, 14)]
    packed = torch.cat(rows)[None]
    bounds = torch.tensor([0, 1, 10, 14, 28])
    places = torch.cat([torch.arange(len(row)) for row in rows])[None]
    alone = torch.cat([model(row[None]).logits for row in rows], 1)
    for given in ({"cu_seqlens": bounds}, {"cu_seq_lens_q": bounds.int()}, {"position_ids": places}):
        assert_close(model(packed, **given).logits, alone, **tolerance(2))
    masked = model(packed, position_ids=places, attention_mask=torch.ones_like(packed)).logits
    assert_close(masked, alone, **tolerance(2))
    two = model(packed.repeat(2, 1), position_ids=places).logits
    assert_close(two, alone.repeat(2, 1, 1), **tolerance(2))
    whole = model(packed, position_ids=torch.arange(28)[None]).logits
    assert_close(whole, model(packed).logits, **tolerance(2))


@torch.no_grad()
def test_packed_beside_padding_is_separate(model):
    """Rows of several sequences, some with padding before, between or after them, or with nothing else."""
    rows = [[tokens(n, seed=n) for n in lengths] for lengths in ((3, 5), (8,), (2, 2, 1))]
    pads = (2, 2, 0), (0, 2), (1, 0, 2, 2)  # before the first, between, after the last
    ids, mask, places = torch.zeros(3, 4, 14).long()
    alone = []
    for i, (parts, gaps) in enumerate(zip(rows, pads, strict=True)):
        t = gaps[0]
        for part, gap in zip(parts, gaps[1:], strict=True):
            here = slice(t, t + len(part))
            ids[i, here], mask[i, here], places[i, here] = part, 1, torch.arange(len(part))
            alone.append(model(part[None]).logits[0])
            t += len(part) + gap
    for batch in (slice(0, 3), slice(0, 4), slice(0, 1)):
        given = {"attention_mask": mask[batch], "position_ids": places[batch]}
        found = model(ids[batch], **given).logits[mask[batch].bool()]
        assert_close(found, torch.cat(alone)[: len(found)], **tolerance(2))


def test_packed_training_is_separate_training(model):
    model.train()
    rows = [tokens(n, seed=n) for n in (5, 12, 8)]
    packed, bounds = torch.cat(rows)[None], torch.tensor([0, 5, 17, 25])
    for mixer in (layer.mixer for layer in model.model.layers):  # balance is a matter of the batch
        for name in ("balance_marginal", "balance_conditional", "balance_scale"):
            if hasattr(mixer, name):
                setattr(mixer, name, 0.0)
    losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    separate = sum(losses) / 22
    expected = torch.autograd.grad(separate, list(model.parameters()))
    for given in ({"cu_seqlens": bounds}, {"position_ids": torch.cat([torch.arange(len(r)) for r in rows])[None]}):
        together = model(packed, labels=packed, **given).loss
        assert_close(together, separate)
        assert_close(torch.autograd.grad(together, list(model.parameters())), expected, **tolerance(3))


def test_padding_has_no_part_in_the_loss(model):
    rows = [tokens(7, seed=1), tokens(11, seed=2)]
    ids, mask = left_padded(rows)
    losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    assert_close(model(ids, attention_mask=mask, labels=ids).loss, sum(losses) / 16)


def test_loss_is_cross_entropy_and_load_balancing(model):
    ids, labels = tokens(2, 20), tokens(2, 20)
    labels[0, 3:6] = -100
    out = model(ids, labels=labels)
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert_close(out.loss, expected)
    assert_close(model(ids, labels=labels, num_items_in_batch=100).loss * 100, expected * 35)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    assert_close(model(ids, shift_labels=shifted).loss, expected)
    model.train()
    trained = model(ids, labels=labels)
    assert trained.logits is None
    mixers = [layer.mixer for layer in model.model.layers]
    model.model(ids)
    balance = [loss for mixer in mixers if (loss := mixer.auxiliary_loss()) is not None]
    if balance:
        assert_close(trained.loss, expected + sum(balance) / len(balance))
    else:
        assert_close(trained.loss, expected)


def test_a_head_that_was_replaced_is_called():
    model, ids = tiny("swila"), tokens(2, 9)
    model.lm_head = torch.nn.Linear(128, VOCABULARY)
    out = model(ids, labels=ids)
    assert_close(out.loss, F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    model.train()(ids, labels=ids).loss.backward()
    assert model.lm_head.bias.grad is not None


def test_logits_in_training_on_request():
    model, ids = tiny("swila", fuse_cross_entropy=False).train(), tokens(2, 9)
    assert model(ids, labels=ids).logits.shape == (2, 9, VOCABULARY)


def test_fields_of_the_configuration_count():
    model = tiny("swila")
    model.config.output_hidden_states = True
    assert len(model(tokens(1, 3)).hidden_states) == 5
    model.config.return_dict = False
    assert isinstance(model(tokens(1, 3)), tuple)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "wrapped"])
def test_training_never_holds_all_logits(plain):
    model = tiny("swila", vocab_size=3000, loss_chunk_size=8).train()
    if not plain:
        model.lm_head = torch.nn.Sequential(model.lm_head)
    ids = torch.randint(3000, (2, 64))
    with Largest() as largest:
        model(ids, labels=ids).loss.backward()
    assert largest.numel < 2 * 64 * 3000 // 2 + 3000 * 128  # the weight of the head is larger than a chunk's logits
    with Largest() as largest:
        model.eval()(ids)
    assert largest.numel == 2 * 64 * 3000


@pytest.mark.parametrize("name", ["gated-temporal-swila", "gdn-mom", "hybrid-temporal-swila", "fox"])
def test_gradient_checkpointing(name):
    model = tiny(name).train()
    ids = tokens(2, 40)
    model(ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    assert_close([p.grad for p in model.parameters()], expected)
    with pytest.raises(ValueError, match="use_reentrant must be False"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


def test_a_cache_is_returned_by_default_outside_of_training():
    model = tiny("swila", num_hidden_layers=1)
    assert model.eval()(tokens(1, 5)).past_key_values is not None
    assert model.train()(tokens(1, 5)).past_key_values is None
    assert model(tokens(1, 5), use_cache=True).past_key_values is not None
    model.config.use_cache = False
    assert model.eval()(tokens(1, 5)).past_key_values is None


def test_gradient_checkpointing_has_no_cache():
    """Blocks that run again would update it twice."""
    model = tiny("swila").train()
    assert model(tokens(1, 5), use_cache=True).past_key_values.get_seq_length() == 5
    model.gradient_checkpointing_enable()
    assert model(tokens(1, 5), use_cache=True).past_key_values is None
    cache = model.eval()(tokens(1, 5), use_cache=True).past_key_values
    assert cache.get_seq_length() == 5
    with pytest.raises(ValueError, match="past_key_values must be None in training with gradient checkpointing"):
        model.train()(tokens(1, 5), past_key_values=cache)
    model.eval()(tokens(1, 5), past_key_values=cache)
    assert cache.get_seq_length() == 10


@torch.no_grad()
@pytest.mark.parametrize("name", ["temporal-swila", "transformer"])
def test_the_cache_of_a_call_that_failed_is_refused(name):
    model, ids = tiny(name), tokens(1, 6)
    began, cache = Cache(), model(ids, use_cache=True).past_key_values
    before = cache.map(torch.clone)

    def fail(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[2].register_forward_pre_hook(fail)
    for mine in (began, cache):
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, :1], past_key_values=mine)
    hook.remove()
    for mine, lengths in ((began, "0 and 1"), (cache, "6 and 7")):
        with pytest.raises(ValueError, match=f"past_key_values must come from a call .* processed {lengths} tokens"):
            model(ids[:, :1], past_key_values=mine)
    expected = model(torch.cat([ids, ids[:, :1]], 1)).logits[:, -1:]
    assert_close(model(ids[:, :1], past_key_values=before).logits, expected, **tolerance())


@pytest.mark.unpoisoned
@pytest.mark.parametrize("name", ["gated-temporal-swila"])  # other mixers: tests/layers/test_layer_precision.py
def test_compiles_to_one_graph(name):
    layers = {"num_hidden_layers": 2, "attention_layers": [1]} if name == "hybrid-gdn" else {"num_hidden_layers": 1}
    model = tiny(name, **layers).train()
    torch.set_default_device(None)  # tracing does not know it
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for T in (12, 17):
        ids = tokens(2, T).to(model.device)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        compiled(ids, labels=ids).loss.backward()
        assert_close([p.grad for p in model.parameters()], expected, rtol=1e-3, atol=1e-5)


def test_every_parameter_is_trained(model):
    ids = tokens(2, 30)
    model.train()(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_lower_precision(model):
    ids = tokens(2, 40)
    exact = model(ids).logits
    found = model.to(torch.bfloat16)(ids).logits
    assert found.dtype == torch.bfloat16
    routed = any("mom" in name for name in model.config.layer_mixers)  # a rounding can send a token elsewhere
    assert (found.float() - exact).norm() < (0.2 if routed else 0.1) * exact.norm()


def test_hidden_states_tuples_and_embeddings(model):
    ids = tokens(2, 9)
    out = model.model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 5
    assert_close(out.hidden_states[-1], out.last_hidden_state)
    assert_close(out.hidden_states[0], model.model.embed_tokens(ids))
    loss, logits = model(ids, labels=ids, return_dict=False, use_cache=False)
    assert_close(model(inputs_embeds=model.model.embed_tokens(ids)).logits, logits)
    assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:])
    assert_close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, logits[:, [0, 5]])
    assert loss.ndim == 0


def test_a_hybrid_is_a_list():
    config = SwiLAConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=6,
        mixer=["swila", "gated-deltanet", "attention"],
        mixer_options={"swila": {"num_heads": 2}, "gated-deltanet": {"num_heads": 2}, "attention": {"num_heads": 4}},
    )
    model = SwiLAModel(config)
    kinds = [type(layer.mixer).__name__ for layer in model.layers]
    assert kinds == ["SwiLA", "GatedDeltaNet", "Attention"] * 2
    assert model(tokens(2, 5)).last_hidden_state.shape == (2, 5, 32)


def test_initial_weights():
    model = tiny("gated-temporal-swila", mixer_options={"temporal_bias": -2.0}, initializer_range=0.02)
    mixer = model.model.layers[0].mixer
    assert (mixer.key_gate_bias == -2).all()
    assert abs(mixer.q_proj.weight.std() - 0.02) < 0.001
    assert abs(model.lm_head.weight.std() - 0.02) < 0.001
    assert 0.2 < mixer.q_conv1d.weight.std() < 0.4
    assert (mixer.decay.A_log.exp() >= 1).all()
    assert (model.model.norm.weight == 1).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "input_ids or inputs_embeds must be given"),
        (
            {"input_ids": tokens(1, 4), "inputs_embeds": torch.zeros(1, 4, 128)},
            "input_ids or inputs_embeds must be given, and not both",
        ),
        ({"input_ids": tokens(1, 4), "output_attentions": True}, "output_attentions must be False"),
        (
            {"input_ids": tokens(1, 4), "past_key_values": ()},
            r"past_key_values must be a swila.layers.Cache, got tuple",
        ),
        ({"input_ids": tokens(1, 4), "position_ids": torch.tensor([[0, 1, 1, 2]])}, "position_ids must increase by 1"),
        (
            {"input_ids": tokens(1, 4), "position_ids": torch.arange(3)[None]},
            r"position_ids must be \[B, T\] = \[1, 4\]",
        ),
        ({"input_ids": tokens(2, 4), "cu_seqlens": torch.tensor([0, 4])}, "batch size 1 with cu_seqlens"),
        (
            {"input_ids": torch.zeros(0, 4).long()},
            r"input_ids must have at least one row and one token, got shape \[0, 4\]",
        ),
        ({"input_ids": torch.zeros(2, 4)}, r"input_ids must be int32 or int64 and \[B, T\], got torch.float32 of"),
        ({"input_ids": tokens(4)}, r"input_ids must be .* got torch.int64 of shape \[4\]"),
        *(
            ({"input_ids": tokens(2, 4), name: wrong}, rf"^{name} must be int32 or int64 and \[B, T\] = \[2, 4\], got")
            for name in ("labels", "shift_labels")
            for wrong in (tokens(4, 2), tokens(1, 8), tokens(8), tokens(2, 4).float())
        ),
        ({"input_ids": tokens(2, 4), "logits_to_keep": -1}, r"logits_to_keep must be 0 .* got -1"),
        ({"inputs_embeds": torch.zeros(2, 0, 128)}, r"inputs_embeds must have at least one row and one token, got"),
        (
            {"input_ids": tokens(2, 4), "attention_mask": torch.ones(2, 6)},
            r"attention_mask must be \[B, T\] = \[2, 4\] with",
        ),
    ],
)
def test_mistakes_in_a_call(given, message, monkeypatch):
    here = {k: v.to(torch.get_default_device()) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    monkeypatch.setattr(validation, "_value_checks", "always")
    with pytest.raises(ValueError, match=message):
        tiny("swila")(**here)


@torch.no_grad()
def test_a_mask_of_the_wrong_length_with_a_cache():
    model, ids = tiny("hybrid-temporal-swila"), tokens(2, 6)
    cache = model(ids[:, :4], use_cache=True).past_key_values
    for columns in (1, 3, 5, 7):
        with pytest.raises(ValueError, match=r"= \[2, 2\], or \[2, 6\] for the text so far, .* got shape"):
            model(ids[:, 4:], attention_mask=torch.ones(2, columns), past_key_values=cache)
    model(ids[:, 4:], attention_mask=torch.ones(2, 6), past_key_values=cache)


def test_slips_among_keywords_are_errors():
    model = tiny("swila")
    for slip, meant in (("cu_seqlen", "cu_seqlens"), ("attention_masks", "attention_mask")):
        with pytest.raises(TypeError, match=f"no argument '{slip}'; did you mean '{meant}'"):
            model(tokens(1, 4), **{slip: None})
    model(tokens(1, 4), cache_position=torch.arange(4))  # what other models need is no error


def test_cache_says_what_it_cannot():
    with pytest.raises(ValueError, match="cannot be rolled back"):
        Cache().crop(3)
