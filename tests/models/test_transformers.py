"""The models among transformers' tools: generate, files, Auto classes, and what is said when something is amiss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
)

from language_models import NAMES, tiny, tokens
from swila import SwiLAConfig, SwiLAForCausalLM, SwiLAModel
from swila.models import auto
from swila.models.language.model_card import model_title

DATA = Path(__file__).parents[3] / "shared" / "data"
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(params=NAMES)
def model(request):
    return tiny(request.param)


@torch.no_grad()
def test_greedy_generation_is_the_likeliest_token_each_time(model):
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    ids[0, :5], mask[0, :5] = 0, 0
    found = model.generate(ids, attention_mask=mask, max_new_tokens=10, **GREEDY)
    for row, start in ((found[0], 5), (found[1], 0)):
        likeliest = model(row[None, start:]).logits[0].argmax(-1)
        assert_close(row[12:], likeliest[11 - start : -1])


def test_beams_and_samples_are_those_without_a_cache(model):
    ids = tokens(2, 8)
    beams = {**GREEDY, "num_beams": 3, "max_new_tokens": 8, "num_return_sequences": 2}
    assert_close(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))
    samples = []
    for use_cache in (True, False):
        torch.manual_seed(7)
        sampling = {**GREEDY, "do_sample": True, "top_k": 20, "temperature": 0.7}
        samples.append(model.generate(ids, max_new_tokens=12, use_cache=use_cache, **sampling))
    assert_close(*samples)


@torch.no_grad()
def test_saved_and_loaded(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    ids = tokens(2, 9)
    for loaded in (SwiLAForCausalLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert type(loaded) is SwiLAForCausalLM
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert type(AutoConfig.from_pretrained(tmp_path)) is SwiLAConfig
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is SwiLAModel
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    card = (tmp_path / "README.md").read_text()
    assert f"{model.num_parameters():,}" in card
    assert "pipeline_tag: text-generation" in card


def test_half_precision_keeps_what_needs_the_digits(tmp_path):
    tiny("gated-swila").save_pretrained(tmp_path)
    loaded = SwiLAForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.lm_head.weight.dtype == torch.bfloat16
    decay = loaded.model.layers[0].mixer.decay
    assert decay.A_log.dtype == decay.dt_bias.dtype == torch.float32


def test_from_config_starts_as_the_constructor_does():
    config = SwiLAConfig.preset("gated-temporal-swila-tiny", vocab_size=50, mixer_options={"temporal_bias": -2.0})
    for made in (AutoModelForCausalLM.from_config(config), AutoModel.from_config(config)):
        mixer = made.base_model.layers[1].mixer
        assert (mixer.key_gate_bias == -2).all()
        assert (mixer.decay.A_log.exp() >= 1).all()
        assert 0.015 < mixer.q_conv1d.weight.std() < 0.025


def test_tied_embeddings(tmp_path):
    model = tiny("swila", tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    loaded = SwiLAForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded(tokens(1, 5)).logits, model(tokens(1, 5)).logits)


def test_cards_name_the_architecture(tmp_path):
    names = {"swila-tiny": "SwiLA", "gdn-mom-tiny": "GDN-MoM", "hybrid-gdn-tiny": "Hybrid GDN", "dn-mom-tiny": "DN-MoM"}
    for name, title in names.items():
        assert model_title(SwiLAConfig.preset(name)) == title
    assert model_title(SwiLAConfig.preset("swila-16-115m")) == "SwiLA, 16 mixtures"
    plain = SwiLAConfig(mixer_options={"temporal": False, "decay": None, "num_heads": 8})
    assert model_title(plain) == "SwiLA"
    tiny("swila").save_pretrained(tmp_path, False)
    assert not (tmp_path / "README.md").exists()


def test_a_card_that_is_there_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    tiny("swila").save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_card_tells_the_size_of_the_state(tmp_path):
    model = tiny("hybrid-gdn")
    model.save_pretrained(tmp_path)
    state, cache = model.model.state_size(0), model.model.state_size(1) - model.model.state_size(0)
    card = (tmp_path / "README.md").read_text()
    assert f"| {state:,} scalars ({4e-6 * state:.2f} MB in float32), for any length of text |" in card
    assert f"| keys and values per token | {cache:,} scalars |" in card


def test_loading_may_tell_what_it_found(tmp_path):
    tiny("swila").save_pretrained(tmp_path)
    model, info = SwiLAForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model) is SwiLAForCausalLM
    assert not info["missing_keys"]


def test_packed_by_transformers_own_collator():
    model = tiny("temporal-swila")
    rows = [tokens(n, seed=n) for n in (5, 9, 3)]
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = collator([{"input_ids": row.tolist()} for row in rows])
    losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    assert_close(model(**batch).loss, sum(losses) / 14)
    batch.pop("cu_seq_lens_q")
    assert_close(model(**batch).loss, sum(losses) / 14)


def test_a_cache_goes_on_in_generate():
    model, ids = tiny("hybrid-temporal-swila"), tokens(1, 20)
    whole = model.generate(ids, max_new_tokens=6, **GREEDY)
    cache = model(ids[:, :15], use_cache=True).past_key_values
    assert_close(model.generate(ids, past_key_values=cache, max_new_tokens=6, **GREEDY), whole)
    with pytest.raises(ValueError, match="input_ids must be longer than the 25 tokens of past_key_values, got 20"):
        model.generate(ids, past_key_values=cache, max_new_tokens=6, **GREEDY)
    with pytest.raises(ValueError, match="cu_seqlens must be None in generate"):
        model.generate(ids, cu_seqlens=torch.tensor([0, 20]), max_new_tokens=1, **GREEDY)
    both = model.generate(ids, inputs_embeds=model.model.embed_tokens(ids), max_new_tokens=6, **GREEDY)
    assert_close(both, whole)
    embedded = model.generate(inputs_embeds=model.model.embed_tokens(ids), max_new_tokens=6, **GREEDY)
    assert_close(embedded, whole[:, 20:])
    cache = model(ids[:, :15], use_cache=True).past_key_values
    embeds = model.model.embed_tokens(ids)
    embedded = model.generate(inputs_embeds=embeds, past_key_values=cache, max_new_tokens=6, **GREEDY)
    assert_close(embedded, whole[:, 20:])


@pytest.mark.skipif(not DATA.exists(), reason="needs the pretrained stories15m")
@torch.no_grad()
def test_transformer_is_llama():
    """Real weights of a Llama, under our names, give Llama's logits."""
    llama = LlamaForCausalLM.from_pretrained(DATA / "stories15m", dtype=torch.float32)
    theirs = llama.config
    ours = SwiLAForCausalLM(
        SwiLAConfig(
            vocab_size=theirs.vocab_size,
            hidden_size=theirs.hidden_size,
            num_hidden_layers=theirs.num_hidden_layers,
            intermediate_size=theirs.intermediate_size,
            mixer="attention",
            mixer_options={"num_heads": theirs.num_attention_heads, "num_kv_heads": theirs.num_key_value_heads},
            norm_eps=theirs.rms_norm_eps,
            tie_word_embeddings=theirs.tie_word_embeddings,
        )
    ).eval()
    names = {"self_attn": "mixer", "input_layernorm": "mixer_norm", "post_attention_layernorm": "mlp_norm"}
    names |= {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    weights = {".".join(names.get(p, p) for p in key.split(".")): t for key, t in llama.state_dict().items()}
    ours.load_state_dict(weights)
    ids = torch.randint(3, theirs.vocab_size, (2, 100))
    assert_close(ours(ids).logits, llama(ids).logits, rtol=1e-4, atol=1e-4)
    assert_close(ours.generate(ids, max_new_tokens=20, **GREEDY), llama.generate(ids, max_new_tokens=20, **GREEDY))


def test_a_checkpoint_of_another_architecture(tmp_path):
    llama = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    LlamaForCausalLM(llama).save_pretrained(tmp_path / "llama")
    with pytest.raises(ValueError, match=r"model_type must be 'swila' .* got 'llama': load this checkpoint with"):
        SwiLAForCausalLM.from_pretrained(tmp_path / "llama")
    tiny("gdn").save_pretrained(tmp_path / "gdn")
    tiny("gdn").model.save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"the checkpoint has no head: .* load it with SwiLAModel"):
        SwiLAForCausalLM.from_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"of another architecture: weights differ in shape"):
        SwiLAForCausalLM.from_pretrained(tmp_path / "gdn", config=tiny("swila").config)
    tiny("swila").save_pretrained(tmp_path / "swila")
    with pytest.raises(ValueError, match=r"of another architecture: \d+ weights are missing, such as .* saved with"):
        SwiLAForCausalLM.from_pretrained(tmp_path / "swila", config=tiny("temporal-swila").config)
    changed = json.loads((tmp_path / "gdn" / "config.json").read_text()) | {"mixer": "mamba"}
    (tmp_path / "gdn" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="mixer must be one of"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "gdn")


IMPORTS = {
    "before": "import swila; from transformers import AutoModelForCausalLM",
    "after": "from transformers import AutoModelForCausalLM; import swila",
    "lazily": "import transformers, swila; AutoModelForCausalLM = transformers.AutoModelForCausalLM",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_auto_classes_know_us_after_import(order, tmp_path):
    tiny("swila").save_pretrained(tmp_path)
    script = f"{IMPORTS[order]}; print(type(AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "SwiLAForCausalLM", done.stderr


def test_import_needs_torch_alone():
    script = (
        "import sys; before = set(sys.modules); import swila; "
        "print({'transformers', 'numba', 'rich', 'typer', 'safetensors'} & (set(sys.modules) - before))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "it is not installed"), ("4.57.1", "version 5.0 or newer is needed, and 4.57.1 is installed")],
)
def test_transformers_missing_or_too_old(version, words, monkeypatch):
    import swila
    from swila import environment

    monkeypatch.setattr(environment, "package_version", lambda _: version)
    assert auto.why_unusable() == words
    for name in ("SwiLAForCausalLM", "SwiLAConfig", "SwiLAModel"):
        with pytest.raises(ImportError, match=rf"{name} needs transformers: {words}. Try: pip install 'swila\[hf\]'"):
            getattr(swila, name)
    with pytest.raises(AttributeError, match="no attribute 'Swila'"):
        _ = swila.Swila
