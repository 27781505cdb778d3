"""The small model of the synthetic experiments."""

import torch
from torch.testing import assert_close

from swila.models import SyntheticModel, SyntheticModelConfig

OPTIONS = {"num_heads": 1, "num_mixtures": 2, "temporal": True, "temporal_bias": -2.0, "decay": "key"}


def make(**more):
    torch.manual_seed(0)
    return SyntheticModel(SyntheticModelConfig(32, 16, 2, "swila", OPTIONS, **more))


def test_reads_out_where_it_is_asked():
    model, tokens = make().eval(), torch.randint(32, (2, 9))
    logits = model(tokens)
    assert logits.shape == (2, 9, 32)
    where = torch.rand(2, 9) < 0.5
    assert_close(model(tokens, where), logits[where])
    assert_close(logits, model.hidden(tokens) @ model.embedding.weight.T)


def test_is_a_pre_norm_block():
    model, tokens = make().eval(), torch.randint(32, (2, 9))
    x = model.embedding(tokens)
    for block in model.blocks:
        x = x + block.mixer(block.mixer_norm(x))[0]
        x = x + block.mlp.fc2(torch.nn.functional.gelu(block.mlp.fc1(block.mlp_norm(x))))
    assert_close(model.hidden(tokens), model.norm(x))


def test_initial_weights():
    model = make(init_std=0.1)
    mixer = model.mixers[0]
    assert abs(model.embedding.weight.std() - 0.1) < 0.01
    assert abs(mixer.q_proj.weight.std() - 0.1) < 0.02
    assert abs(model.blocks[0].mlp.fc2.weight.std() - 0.05) < 0.01
    assert abs(mixer.o_proj.weight.std() - 0.1) < 0.02, "as in Zoology, whose rescaling does not know this name"
    assert abs(model.blocks[0].mlp.fc1.weight.std() - 0.1) < 0.01
    assert (model.blocks[0].mlp.fc1.bias == 0).all()
    assert (mixer.key_gate_bias == -2).all(), "the stickiness stays"
    assert mixer.q_conv1d.weight.abs().max() > 0.3
    assert mixer.decay.A_log.std() > 0


def test_layers_have_their_own_places_in_a_cache():
    from swila.layers import Cache

    model, tokens = make().eval(), torch.randint(32, (2, 9))
    whole, cache = model.hidden(tokens), Cache()
    pieces = [model.hidden(part, past_key_values=cache) for part in tokens.split(3, 1)]
    assert_close(torch.cat(pieces, 1), whole)
    assert model.state_size() == 2 * 2 * 8 * 8
    assert model.num_parameters() == sum(p.numel() for p in model.parameters())


def test_width_of_the_mlps():
    assert make().blocks[0].mlp.fc1.out_features == 4 * 16
    assert make(mlp_ratio=3).blocks[-1].mlp.fc1.out_features == 3 * 16


def test_padding_and_packed_sequences_reach_every_layer():
    model, tokens = make().eval(), torch.randint(32, (2, 9))
    mask = torch.ones(2, 9)
    mask[1, :4] = 0
    padded = model.hidden(tokens, attention_mask=mask)
    assert_close(padded[0], model.hidden(tokens[:1])[0])
    assert_close(padded[1, 4:], model.hidden(tokens[1:, 4:])[0])
    packed = model.hidden(tokens.view(1, 18), cu_seqlens=torch.tensor([0, 9, 18]))
    assert_close(packed.view(2, 9, -1), model.hidden(tokens))


def test_dropout():
    model, tokens = make(embed_dropout=0.5, dropout=0.2), torch.randint(32, (2, 9))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
