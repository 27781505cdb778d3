"""``swila models``, ``generate`` and ``chat``, as a user runs them."""

import json
import math
import shutil

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from language_models import tiny
from swila import GenerationState, generate, prefill
from swila.cli.app import app
from swila.cli.chat import turn_tokens
from swila.models.language.presets import preset_names


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny model with a tokenizer of single letters."""
    directory = tmp_path_factory.mktemp("model")
    letters = ["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz ,.:?!'0123456789"]
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    model = tiny("temporal-swila", vocab_size=len(letters), bos_token_id=0, eos_token_id=1)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory, model, fast


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def invoke(*arguments, typed=None):
        return CliRunner().invoke(app, list(map(str, arguments)), input=typed)

    return invoke


@pytest.mark.unpoisoned
def test_models(run):
    result = run("models")
    assert result.exit_code == 0
    for name in preset_names():
        assert name in result.output
    line = next(line for line in result.output.splitlines() if "hybrid-gdn-374m" in line)
    assert line.split() == ["hybrid-gdn-374m", "374.4", "M", "2560", "9.44", "MB", "24,576", "B"]
    assert "swila-1.3b" not in run("models", "--size", "374M").output
    wrong = run("models", "--size", "7b")
    assert wrong.exit_code == 2
    assert "size must be one of tiny, small, 115m, 374m, 1.3b, got '7b'" in wrong.output


def expected(saved, prompt, n):
    _, model, tokenizer = saved
    return generate(model, prompt, tokenizer, max_new_tokens=n).texts[0]


def test_one_prompt_is_streamed(run, saved):
    result = run("generate", saved[0], "once upon", "-n", 12)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == ("once upon" + expected(saved, "once upon", 12)).strip()


def test_prompts_side_by_side(run, saved):
    result = run("generate", saved[0], "once", "a time", "-n", 6, "--temperature", 0.8, "--seed", 1)
    again = run("generate", saved[0], "once", "a time", "-n", 6, "--temperature", 0.8, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert result.output == again.output
    assert len(result.output.strip().split("\n\n")) == 2


def test_a_state_is_saved_and_taken_up(run, saved, tmp_path):
    (tmp_path / "book.txt").write_text("there was a king" * 20)
    first = run("generate", saved[0], "--file", tmp_path / "book.txt", "-n", 0, "--save-state", tmp_path / "state")
    assert first.exit_code == 0, first.output
    assert "state after 320 tokens" in first.stderr
    assert first.stdout == ""
    second = run("generate", saved[0], "who?", "--state", tmp_path / "state", "-n", 8)
    whole = expected(saved, "there was a king" * 20 + "who?", 8)
    assert second.stdout.strip() == ("who?" + whole).strip()
    at_once = run("generate", saved[0], "who?", "--file", tmp_path / "book.txt", "-n", 8)
    assert at_once.stdout == second.stdout
    assert run("generate", saved[0], "-", "--state", tmp_path / "state", "-n", 8, typed="who?").stdout == second.stdout
    two = run("generate", saved[0], "a", "b", "--state", tmp_path / "state", "-n", 2, "--save-state", tmp_path / "two")
    assert two.exit_code == 0, two.output
    both = run("generate", saved[0], "--state", tmp_path / "two", "-n", 3)
    assert both.exit_code == 0, both.output
    assert len(both.output.rstrip("\n").split("\n\n")) == 2


def test_a_model_is_loaded_in_the_dtype_of_its_state(run, saved, tmp_path):
    path = tmp_path / "state"
    first = run("generate", saved[0], "once", "-n", 0, "--dtype", "bfloat16", "--save-state", path)
    assert first.exit_code == 0, first.output
    second = run("generate", saved[0], "upon", "-n", 4, "--state", path)
    assert second.exit_code == 0, second.output
    assert second.stdout.startswith("upon")
    other = run("generate", saved[0], "upon", "-n", 4, "--state", path, "--dtype", "float32")
    assert other.exit_code == 2
    assert "was made in bfloat16, and the model is in float32" in " ".join(other.output.split())


def test_a_state_of_another_model(run, saved, tmp_path):
    """The advice can be followed on the command line."""
    other = tiny("temporal-swila", seed=1, vocab_size=saved[1].config.vocab_size)
    prefill(other, [3, 4, 5]).save(tmp_path / "state", other)
    for result in (
        run("generate", saved[0], "a", "--state", tmp_path / "state"),
        run("chat", saved[0], "--state", tmp_path / "state"),
    ):
        assert result.exit_code == 2, result.output
        assert f"swila: {tmp_path / 'state'} was made with other weights than the model's" in result.stderr
        assert "; use the model it was made with, or process the text again\n" in result.stderr
        assert "check=" not in result.stderr
        assert result.stderr.count("\n") == 1


def test_chat(run, saved, tmp_path):
    lines = ["hello", "", "/save " + str(tmp_path / "s"), "more", "/load " + str(tmp_path / "s"), "more", "/nonsense"]
    lines += ["/reset", "/save x", "/save", "/load nowhere", "/quit"]
    result = run("chat", saved[0], "-n", 5, "--temperature", 0, typed="\n".join(lines) + "\n")
    assert result.exit_code == 0, result.output
    first = expected(saved, "hello", 5)
    assert first in result.output
    tokens = generate(saved[1], "hello", saved[2], max_new_tokens=5).tokens[0]
    ids = saved[2]("hello")["input_ids"] + tokens + saved[2]("\nmore")["input_ids"]
    second = generate(saved[1], ids, saved[2], max_new_tokens=5).texts[0]
    assert result.output.count(second) >= 2
    assert "10 tokens in" in result.output
    assert "10 tokens from" in result.output
    assert result.output.count("/save FILE, /load FILE, /reset, /quit") == 2
    assert "the state is cleared" in result.output
    assert "there is no state to save yet" in result.output
    assert "/save needs the name of a file" in result.output
    assert "path must be a file with a saved state, got 'nowhere'" in result.output


def test_turns_of_a_chat_are_drawn_anew(run, saved):
    result = run("chat", saved[0], "-n", 8, "--temperature", 1.5, "--seed", 3, typed="hello\nmore\n/quit\n")
    assert result.exit_code == 0, result.output
    drawn = {"max_new_tokens": 8, "temperature": 1.5, "top_p": 0.95, "return_state": True}
    first = generate(saved[1], "hello", saved[2], seed=3, **drawn)
    second = generate(saved[1], "\nmore", saved[2], seed=4, state=first.state, **drawn)
    assert first.texts[0] in result.output
    assert second.texts[0] in result.output


def test_the_last_token_of_a_loaded_chat_is_not_known(run, saved, tmp_path, monkeypatch):
    known = []

    def tokens(tokenizer, text, first, last):
        known.append((first, last))
        return turn_tokens(tokenizer, text, first, last)

    monkeypatch.setattr("swila.cli.chat.turn_tokens", tokens)
    path = tmp_path / "state"
    lines = f"hello\nmore\n/save {path}\n/load {path}\nmore\n/quit\n"
    result = run("chat", saved[0], "-n", 1, "--temperature", 0, typed=lines)
    assert result.exit_code == 0, result.output
    (answer,) = generate(saved[1], "hello", saved[2], max_new_tokens=1).tokens[0]
    assert known == [(True, None), (False, answer), (False, None)]


@pytest.mark.parametrize("seed", [2**64, -1])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_seeds_there_are_not(run, saved, command, seed):
    result = run(command, saved[0], *(["a"] if command == "generate" else []), "--temperature", 1, "--seed", seed)
    assert result.exit_code == 2
    assert result.stderr == f"swila: seed must be an integer from 0 to 2**64 - 1, got {seed}\n"
    assert result.stdout == ""


def test_the_last_seed_serves_every_turn(run, saved):
    arguments = saved[0], "--temperature", 1, "-n", 4, "--seed", 2**64 - 1
    result = run("chat", *arguments, typed="hello\nmore\n/quit\n")
    assert result.exit_code == 0, result.output
    assert "seed" not in result.output


def test_chat_with_a_template(run, saved, tmp_path):
    directory, _, tokenizer = saved
    turn = "{% if m.role == 'user' %}u: {{ m.content }}{% else %}b: {{ m.content }}</s>.{% endif %}"
    end = "{% if add_generation_prompt %}b:{% endif %}"
    tokenizer.chat_template = f"<s>be good. {{% for m in messages %}}{turn}{{% endfor %}}{end}"
    tokenizer.save_pretrained(tmp_path)
    try:
        ids = turn_tokens(tokenizer, "yo", first=False, last=5)
        assert ids == tokenizer("</s>.u: yob:")["input_ids"]  # an answer that was cut short is ended
        assert turn_tokens(tokenizer, "yo", first=False, last=tokenizer.eos_token_id) == ids[1:]
        assert turn_tokens(tokenizer, "hi", first=True, last=None) == tokenizer("<s>be good. u: hib:")["input_ids"]
    finally:
        tokenizer.chat_template = None
    result = run("chat", directory, "--tokenizer", tmp_path, "-n", 4, "--temperature", 0, typed="hi\n/quit\n")
    assert result.exit_code == 0, result.output
    assert expected(saved, "<s>be good. u: hib:", 4) in result.output


def test_mistakes(run, saved, tmp_path):
    nothing = run("generate", saved[0])
    assert nothing.exit_code == 2
    assert "a prompt, --file or --state must be given" in nothing.output
    for arguments, words in (
        (("generate", saved[0], "a", "--device", "cuda:99"), "device 'cuda:99' cannot be used here"),
        (("generate", saved[0], "a", "--dtype", "int8"), "dtype must be one of"),
        (("generate", saved[0], "a", "--state", tmp_path / "no"), "path must be a file with a saved state"),
        (("generate", tmp_path, "a"), str(tmp_path)),
        (("generate", tmp_path / "nowhere", "a"), "model must be a directory that save_pretrained wrote"),
        (("generate", saved[0], "a", "--tokenizer", tmp_path), "no tokenizer was found in"),
        (("generate", saved[0], "a", "--seed", 1), "--seed, --top-k and --top-p have no effect without --temperature"),
        (("chat", saved[0], "--state", tmp_path / "no"), "path must be a file with a saved state"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        assert words in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("file", "kept"),
    [("model.safetensors", 0), ("model.safetensors", 0.5), ("config.json", 0.5), ("model.safetensors.index.json", 0.5)],
)
def test_a_model_that_was_cut_off(run, saved, tmp_path, command, file, kept):
    broken = shutil.copytree(saved[0], tmp_path / "model") / file
    if file == "model.safetensors.index.json":
        (broken.parent / "model.safetensors").unlink()
        broken.write_text('{"metadata": {}, "weight_map": {}}')
    content = broken.read_bytes()
    broken.write_bytes(content[: int(kept * len(content))])
    result = run(command, broken.parent, *(["a"] if command == "generate" else []))
    assert result.exit_code == 2
    assert f"swila: model must be complete, but {broken} is truncated or damaged; copy it again (" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["[]", "null", '"swila"'])
def test_a_configuration_that_is_none(run, saved, tmp_path, content):
    config = shutil.copytree(saved[0], tmp_path / "model") / "config.json"
    config.write_text(content)
    result = run("generate", config.parent, "a")
    assert result.exit_code == 2, result.output
    assert f"swila: model must be complete, but {config} is truncated or damaged; copy it again (" in result.stderr
    assert "(must hold a JSON object, got " in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", b"garbage"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"[]"),
        ("tokenizer_config.json", b"garbage"),
        ("tokenizer_config.json", b"[]"),
    ],
)
def test_a_tokenizer_that_cannot_be_read(run, saved, tmp_path, file, content):
    broken = shutil.copytree(saved[0], tmp_path / "model") / file
    broken.write_bytes(content)
    for arguments in ([broken.parent], [saved[0], "--tokenizer", broken.parent]):
        result = run("generate", *arguments, "a")
        assert result.exit_code == 2, result.output
        assert f"swila: tokenizer must be complete, but {broken} cannot be read; copy it again (" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_adapter_is_no_model(run, saved, tmp_path, command):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(saved[0])}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    result = run(command, tmp_path, *(["a"] if command == "generate" else []))
    assert result.exit_code == 2
    assert f"model must be a complete model, got a PEFT adapter in '{tmp_path}'" in result.stderr
    assert f"base = SwiLAForCausalLM.from_pretrained('{saved[0]}')" in result.stderr
    assert "merge_and_unload().save_pretrained(DIRECTORY)" in result.stderr
    assert f"PeftModel.from_pretrained(base, '{tmp_path}')" in result.stderr
    assert "; merge it into its base model first: " in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_adapter_beside_a_model(run, saved, tmp_path, command):
    """Whether transformers takes the adapter depends on whether peft is installed."""
    both = shutil.copytree(saved[0], tmp_path / "model")
    (both / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(both)}))
    (both / "adapter_model.safetensors").write_bytes(b"weights")
    result = run(command, both, *(["a"] if command == "generate" else []))
    assert result.exit_code == 2, result.output
    assert (
        f"model must be a complete model, got a PEFT adapter in '{both}'; move it out of the directory" in result.stderr
    )
    assert " merge it into its base model first: " in result.stderr
    assert f"base = SwiLAForCausalLM.from_pretrained('{both}')" in result.stderr
    assert "PeftModel.from_pretrained(base, 'ADAPTER')" in result.stderr
    assert result.stderr.count("\n") == 1
    (tmp_path / "ADAPTER").mkdir()
    for file in both.glob("adapter_*"):
        file.rename(tmp_path / "ADAPTER" / file.name)
    assert run("generate", both, "a", "-n", 1).exit_code == 0


def test_text_that_is_none(run, saved, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    for result, source in (
        (run("generate", saved[0], "--file", tmp_path / "picture.png"), f"file {tmp_path / 'picture.png'}"),
        (run("generate", saved[0], "-", typed=b"\x89PNG"), "the prompt on standard input"),
    ):
        assert result.exit_code == 2
        assert (
            result.stderr == f"swila: {source} must be text in UTF-8, got byte 0x89 at position 0: invalid start byte\n"
        )
    (tmp_path / "text").write_bytes("é".encode())
    assert run("generate", saved[0], "--file", tmp_path / "text", "-n", 0).exit_code == 0


@pytest.mark.parametrize("command", ["generate", "chat", "run", "doctor"])
@pytest.mark.parametrize(
    ("device", "reason"),
    [("meta", "its tensors hold no numbers"), ("tpu", "torch has no device of this name"), ("xla", "Could not run")],
)
def test_devices_that_cannot_be_used(run, saved, tmp_path, command, device, reason):
    rest = {"generate": [saved[0], "a"], "chat": [saved[0]], "run": ["cdar", "--out", tmp_path / "out"], "doctor": []}
    result = run(command, *rest[command], "--device", device)
    assert result.exit_code == 2
    assert f"swila: device '{device}' cannot be used here (cpu, cuda and cuda:1 are devices): {reason}" in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 200
    assert not (tmp_path / "out").exists()


class Llama:
    """A tokenizer with the ways of Llama's: it begins texts with a token, and drops the space of a first word."""

    bos_token_id, words = 0, ["<s>", "the", "king", "was", "here"]

    def __call__(self, text):
        return {"input_ids": [0, *(self.words.index(word) for word in text.split())]}

    def decode(self, tokens, skip_special_tokens):
        return " ".join(self.words[token % 5] for token in tokens if token % 5)


def test_text_goes_on_from_text():
    model, words = tiny("temporal-swila", vocab_size=5, eos_token_id=None), Llama()
    whole = generate(model, "the king was", words, max_new_tokens=6)
    state = prefill(model, "the king", words)
    assert state.tokens == [3]
    rest = generate(model, "was", words, state=state, max_new_tokens=6, return_state=True)
    assert rest.tokens == whole.tokens
    assert rest.state.tokens == [10]
    together = words.decode(words("the king was")["input_ids"] + whole.tokens[0], skip_special_tokens=True)
    assert "the king was" + whole.texts[0] == together


def test_bench_generate(run, tmp_path):
    arguments = ["--prompt", 5, "-n", 17, "--batch", 2, "--not-compiled", "--repeats", 1, "--device", "cpu"]
    arguments += ["--model", "gdn-tiny", "--model", "temporal-swila-tiny", "--long", 300, "--out", tmp_path / "g.json"]
    result = run("bench", "generate", *arguments)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "g.json").read_text())
    assert [row["model"] for row in record["timings"]] == ["gdn-tiny", "temporal-swila-tiny"]
    assert all(math.isfinite(row["token_ms"]["swila"]) for row in record["timings"])
    assert record["long"]["same"]
    assert record["environment"]["torch"]


def test_a_long_text_must_end_in_the_same_state(monkeypatch):
    from swila.benchmarks import generation

    long_text = ("temporal-swila-tiny", 40, "cpu", torch.float32)
    assert generation.read_long_text(*long_text).same
    load = GenerationState.load

    def changed(path, model):
        state = load(path, model)
        state.hidden[0, 0] += 1e-6
        state.cache[0]["recurrent_state"].W.mul_(1 + 1e-6)
        return state

    monkeypatch.setattr(generation.GenerationState, "load", changed)
    assert not generation.read_long_text(*long_text).same


def test_bench_refuses_to_time_what_is_wrong(run, tmp_path, monkeypatch):
    from swila.benchmarks import generation

    right = generation.generate

    def wrong(*arguments, **options):
        out = right(*arguments, **options)
        out.tokens[0][3] += 1
        return out

    monkeypatch.setattr(generation, "generate", wrong)
    result = run("bench", "generate", "--model", "gdn-tiny", "--device", "cpu", "--out", tmp_path / "g.json")
    assert result.exit_code == 1
    assert "gdn-tiny is not timed: gdn-tiny generates other tokens" in result.output
    assert json.loads((tmp_path / "g.json").read_text())["timings"] == []


def test_bench_writes_results_as_they_come(run, tmp_path, monkeypatch):
    from swila.benchmarks import generation

    def time(model, name, batch, *others):
        if batch == 3:
            raise KeyboardInterrupt
        return generation.Timing(name, batch, None, {}, {}, None, None, ("prompts",))

    monkeypatch.setattr(generation, "_time", time)
    monkeypatch.setattr(generation, "refused", lambda name, device: None)
    arguments = ["--model", "gdn-tiny", "--device", "cpu", "--batch", 2, "--out", tmp_path / "g.json"]
    run("bench", "generate", *arguments, "--batch", 3)
    assert [row["batch"] for row in json.loads((tmp_path / "g.json").read_text())["timings"]] == [2]
    result = run("bench", "generate", *arguments)
    assert "out of memory" in result.output
    assert result.exit_code == 0
