"""``swila data prepare`` and ``swila data show`` as a user runs them."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from swila.cli.app import app
from swila.data import TokenData, preparation
from text_data import save_tokenizer, sentence, write_jsonl


@pytest.fixture(autouse=True)
def _usual_handler():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    save_tokenizer(tmp_path / "tokenizer.json")

    def invoke(*arguments):
        return CliRunner().invoke(app, ["data", *map(str, arguments)])

    return invoke


@pytest.fixture
def prepare(run):
    def invoke(*arguments, out="tokens"):
        return run("prepare", *arguments, "--tokenizer", "tokenizer.json", "--out", out)

    return invoke


def test_prepare_and_show(tmp_path, run, prepare):
    write_jsonl(tmp_path / "a.jsonl", [sentence(number) for number in range(200)])
    result = prepare("a.jsonl", "--validation", "0.2")
    assert result.exit_code == 0, result.output
    data = TokenData(tmp_path / "tokens")
    train, validation = data.manifest.splits["train"], data.manifest.splits["validation"]
    assert f"train: {train.documents} documents, {train.tokens:,} tokens" in result.output
    assert f"validation: {validation.documents} documents, {validation.tokens} tokens" in result.output
    assert "tokens/s" in result.output
    assert "0:00:00 left" in result.output

    result = run("show", "tokens", "--samples", "2")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.output.splitlines() if line.strip().startswith("train"))
    assert row.split() == [
        "train",
        "" + str(train.documents),
        f"{train.tokens:,}",
        f"{train.tokens / train.documents:.1f}",
        "1",
    ]
    assert "tokenizer tokenizer.json" in result.output
    assert "vocabulary 19, BOS added to each document" in result.output
    assert f"{data.bytes:,} bytes, tokens as uint16, all checksums right" in result.output
    assert result.output.count("train document") == 2
    assert result.output.count("<s>") == 2


def test_samples_are_the_first_tokens_of_their_documents(tmp_path, run, prepare):
    texts = ["the cat sat", "a dog ran " * 40]
    write_jsonl(tmp_path / "a.jsonl", texts)
    prepare("a.jsonl", "--validation", "0")
    output = " ".join(run("show", "tokens").output.split())
    assert "train document 0, 4 tokens: <s> the cat sat" in output
    assert "train document 1, 121 tokens: <s> " + " ".join((texts[1].split())[:47]) + " …" in output
    write_jsonl(tmp_path / "many.jsonl", [sentence(number) for number in range(300)])
    prepare("many.jsonl", out="many")
    shown = [run("show", "many", "--samples", "1", "--seed", seed).output for seed in (0, 0, 1)]
    assert shown[0] == shown[1] != shown[2]
    assert "document 0" not in run("show", "many", "--samples", "0").output


def test_options_reach_the_preparation(tmp_path, prepare):
    (tmp_path / "a.txt").write_text("the cat\n\na dog\nran\n\nit was red")
    write_jsonl(tmp_path / "v.jsonl", ["a tree"])
    write_jsonl(tmp_path / "w.jsonl", ["a dog\nran"])
    options = (
        "--documents blank-lines --validation-from v.jsonl --validation-from w.jsonl --no-bos --eos --shard-tokens 2"
    )
    result = prepare("a.txt", *options.split(), "--eos-token", "blue")
    assert result.exit_code == 0, result.output
    assert "left out: 1 documents also in the validation split" in result.output
    data = TokenData(tmp_path / "tokens")
    split = data.split("train")
    assert split.read(0, split.tokens).tolist() == [3, 5, 18, 15, 16, 17, 18]
    assert len(data.manifest.splits["train"].shards) == 2
    assert data.split("validation").documents == 2


def test_without_validation_it_says_so(tmp_path, prepare):
    write_jsonl(tmp_path / "a.jsonl", ["the cat"])
    result = prepare("a.jsonl")
    assert result.exit_code == 0
    assert "There is no validation split: no document fell into it." in result.output
    assert "There is no validation split: none was asked for." in prepare("a.jsonl", "--validation", 0, out="b").output


def test_again_does_nothing_and_other_arguments_need_fresh(tmp_path, prepare):
    write_jsonl(tmp_path / "a.jsonl", ["the cat"])
    prepare("a.jsonl")
    result = prepare("a.jsonl")
    assert result.exit_code == 0
    assert result.output.strip() == "tokens is complete: nothing to do. Use --fresh to start again."
    result = prepare("a.jsonl", "--eos")
    assert result.exit_code == 2
    assert result.stderr == (
        "swila: tokens was prepared with other arguments: add_eos was False and is True. Start again with --fresh\n"
    )
    assert prepare("a.jsonl", "--eos", "--fresh").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.txt"], "source absent.txt does not exist. Sources are files or folders of"),
        (["a.jsonl", "--column", "body"], "a.jsonl, line 1: no column 'body', choose one of these with --column: text"),
        (["a.jsonl", "--documents", "pages"], "documents must be one of file, blank-lines, lines"),
        (["a.jsonl", "--validation", "2"], "validation must be a fraction"),
        (["a.jsonl", "--bos-token", "zebra"], "bos_token must be a token of tokenizer.json, got 'zebra'"),
    ],
)
def test_errors_in_one_line(tmp_path, prepare, arguments, message):
    write_jsonl(tmp_path / "a.jsonl", ["the cat"])
    result = prepare(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"swila: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_a_signal_it_continues(tmp_path, prepare, monkeypatch, number):
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 100)
    write_jsonl(tmp_path / "a.jsonl", [sentence(n) for n in range(100)])
    write = preparation._Preparation._write

    def interrupt(self, batch, tokens):
        write(self, batch, tokens)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(preparation._Preparation, "_write", interrupt)
        result = prepare("a.jsonl", "--validation", "0")
    assert result.exit_code == 130
    assert "interrupted; the same command continues in tokens" in result.output
    assert json.loads((tmp_path / "tokens" / "progress.json").read_text())["state"]["documents"] > 0
    assert prepare("a.jsonl", "--validation", "0").exit_code == 0
    assert TokenData(tmp_path / "tokens").split("train").documents == 100


def test_show_of_corrupt_data(tmp_path, run, prepare):
    write_jsonl(tmp_path / "a.jsonl", ["the cat", "a dog"])
    prepare("a.jsonl", "--validation", "0")
    shard = tmp_path / "tokens" / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)
    result = run("show", "tokens")
    assert result.exit_code == 2
    assert result.stderr.startswith("swila: tokens/train-00000.bin is corrupt")
    assert result.stderr.count("\n") == 1
    shard.write_bytes(content[:-1])
    assert "must have 12 bytes, got 11" in run("show", "tokens").stderr
    result = run("show", ".")
    assert result.exit_code == 2
    assert "must be a directory written by swila data prepare" in result.stderr
