"""The language models' loss in training: what it adds up, alone and where gradients are accumulated."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from language_models import tiny, tokens
from swila import SwiLAConfig, SwiLAForCausalLM
from swila.layers import collect_auxiliary_loss
from swila.models.language.cross_entropy import IGNORE, chunked_cross_entropy, default_chunk

pytestmark = pytest.mark.usefixtures("on_the_device")


def balanced(**changes):
    """A model whose load balancing is as large as its cross-entropy, so that no tolerance hides it."""
    weights = {"balance_marginal": 2.0, "balance_conditional": 0.5}
    return tiny("temporal-swila", mixer_options=weights, num_hidden_layers=2, **changes).train()


def parts_of(model, ids, labels, **given):
    """The summed cross-entropy of a batch, its number of labels, and the mean over layers of load balancing."""
    hidden = model.model(ids, **given).last_hidden_state
    losses = [layer.mixer.auxiliary_loss() for layer in model.model.layers]
    logits = hidden @ model.lm_head.weight.T
    targets = labels[:, 1:].flatten()
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum", ignore_index=IGNORE)
    return total, int((targets != IGNORE).sum()), sum(losses) / len(losses)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "with-logits"])
def test_one_step(fused):
    model, ids = balanced(fuse_cross_entropy=fused), tokens(2, 12)
    labels = ids.clone()
    labels[0, 2:9] = IGNORE
    total, count, balance = parts_of(model, ids, labels)
    assert count == 2 * 11 - 7
    assert balance.abs() > 0.1
    assert_close(model(ids, labels=labels).loss, total / count + balance)
    assert_close(model.eval()(ids, labels=labels).loss, total / count)


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_of_the_head_are_called(kind):
    """Logits that a hook makes twice as large are so in the fused loss, too."""
    model, ids = balanced(), tokens(2, 12)
    plain = model(ids, labels=ids).loss
    register = getattr(model.lm_head, f"register_{kind}_hook")
    register(lambda module, given, *output: 2 * output[0] if output else (2 * given[0],))
    fused = model(ids, labels=ids).loss
    assert not torch.allclose(fused, plain)
    model.config.fuse_cross_entropy = False
    assert_close(fused, model(ids, labels=ids).loss)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_steps_that_accumulate_add_up_to_one(as_tensor):
    """Each has its share of the labels; so the load-balancing losses add up to their mean, weighted by labels."""
    model = balanced()
    batches = [(tokens(2, 12, seed=1), 0), (tokens(1, 8, seed=2), 3), (tokens(3, 20, seed=3), 10)]
    parts = []
    for ids, without in batches:
        labels = ids.clone()
        labels[:, 1 : 1 + without] = IGNORE
        parts.append((ids, labels, *parts_of(model, ids, labels)))
    items = sum(count for *_, count, _ in parts)
    given = torch.tensor(items) if as_tensor else items
    found = [model(ids, labels=labels, num_items_in_batch=given).loss for ids, labels, *_ in parts]
    for loss, (_, _, total, count, balance) in zip(found, parts, strict=True):
        assert_close(loss, total / items + balance * count / items)
    mean = sum(balance * count for *_, count, balance in parts) / items
    assert_close(sum(found), sum(total for _, _, total, _, _ in parts) / items + mean)


def test_gradients_of_load_balancing_under_accumulation():
    model, ids = balanced(), tokens(2, 12)
    router = model.model.layers[0].mixer.key_router[0].weight
    total, count, balance = parts_of(model, ids, ids)
    expected = torch.autograd.grad(total / (3 * count) + balance / 3, router)[0]
    found = torch.autograd.grad(model(ids, labels=ids, num_items_in_batch=3 * count).loss, router)[0]
    assert_close(found, expected)
    assert not torch.allclose(found, torch.autograd.grad(parts_of(model, ids, ids)[0] / (3 * count), router)[0])


def test_load_balancing_is_taken_once():
    model, ids = balanced(), tokens(1, 9)
    model(ids, labels=ids)
    assert collect_auxiliary_loss(model) == 0


def test_a_batch_without_labels_has_no_loss():
    model, ids = balanced().eval(), tokens(1, 9)
    assert model(ids, labels=torch.full_like(ids, IGNORE)).loss == 0


def test_padding_and_labels_by_hand():
    """With tokens a b c, a padding on either side, only b and c are predicted, from a and b."""
    model, ids = tiny("swila"), tokens(1, 3)
    logits = model(ids).logits[0]
    expected = F.cross_entropy(logits[:2], ids[0, 1:])
    for left, right in ((2, 0), (0, 2), (1, 3)):
        padded, mask = F.pad(ids, (left, right), value=5), F.pad(torch.ones_like(ids), (left, right))
        assert_close(model(padded, attention_mask=mask, labels=padded).loss, expected)


def test_a_chunk_of_logits_takes_256_megabytes():
    assert 2**28 // (4 * 32_000) == 2097
    assert default_chunk(32_000) == 2048
    assert default_chunk(2**19) == 128
    assert default_chunk(2**19 + 1) == 127
    assert default_chunk(2**40) == 1


def test_any_head_in_chunks():
    torch.manual_seed(0)
    x, target = torch.randn(10, 4, dtype=torch.float64), torch.randint(7, (10,))
    target[3] = IGNORE
    head = torch.nn.Linear(4, 7, dtype=torch.float64)
    expected = F.cross_entropy(head(x), target, reduction="sum", ignore_index=IGNORE)
    for chunk in (1, 3, 10, None):
        assert_close(chunked_cross_entropy(head, x, target, chunk, 7), expected)
    half = chunked_cross_entropy(lambda part: head(part).bfloat16(), x, target, 4, 7)
    assert half.dtype == torch.float32


def test_defaults_of_the_configuration():
    config = SwiLAConfig()
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.mixer) == (32000, 1024, 24, "swila")
    assert (config.norm_eps, config.initializer_range, config.tie_word_embeddings) == (1e-6, 0.02, False)
    assert (config.conv_initializer_range, config.embedding_initializer_range, config.rescale_residual) == (
        0.02,
        None,
        False,
    )
    assert (config.max_position_embeddings, config.use_cache, config.fuse_cross_entropy) == (4096, True, True)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, None)
    widths = {size: SwiLAConfig(hidden_size=size).intermediate_size for size in (768, 1024, 2048, 96)}
    assert widths == {768: 2048, 1024: 2816, 2048: 5632, 96: 256}


def test_weights_start_as_the_configuration_says():
    model = tiny("gdn", initializer_range=0.07, hidden_size=128)
    layer = model.model.layers[1]
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight, layer.mlp.gate.weight, layer.mlp.down.weight):
        assert weight.std().item() == pytest.approx(0.07, rel=0.05)
        assert weight.mean().abs() < 0.005
    assert layer.mixer.o_proj.weight.std().item() == pytest.approx(0.07, rel=0.05)
    for norm in (layer.mixer_norm, layer.mlp_norm, model.model.norm, layer.mixer.o_norm):
        assert (norm.weight == 1).all()
    assert (layer.mixer_norm.eps, layer.mlp_norm.eps, model.model.norm.eps) == (1e-6, 1e-6, 1e-6)
    assert 0 < layer.mixer.decay.A_log.exp().max() <= 16
    assert 0.4 < layer.mixer.v_conv1d.weight.abs().max() <= 0.5
    default = SwiLAForCausalLM(SwiLAConfig.preset("gdn-tiny", num_hidden_layers=1, vocab_size=8)).model.layers[0]
    assert default.mixer.v_conv1d.weight.std().item() == pytest.approx(0.02, rel=0.1)
    kda = tiny("kda", initializer_range=0.07).model.layers[0].mixer
    assert (kda.g_proj[1].bias == 0).all()


@torch.no_grad()
def test_a_block_is_pre_norm_with_swiglu():
    model = tiny("deltanet")
    layer, x = model.model.layers[0], torch.randn(2, 5, 128)

    def norm(module, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight

    mixed = x + layer.mixer(norm(layer.mixer_norm, x))[0]
    inner = norm(layer.mlp_norm, mixed)
    expected = mixed + layer.mlp.down(F.silu(layer.mlp.gate(inner)) * layer.mlp.up(inner))
    assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
