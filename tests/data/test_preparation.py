"""Preparation: what goes in comes out, once, in one split, whatever interrupts it."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from swila.data import TokenData, preparation, prepare
from text_data import ids_of, save_tokenizer, sentence, write_jsonl


@pytest.fixture
def go(tmp_path):
    """Prepares sources into ``tmp_path / "out"`` with a small tokenizer."""
    tokenizer = save_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")

    def run(*sources, out="out", **options):
        return prepare(sources, options.pop("tokenizer", tokenizer), tmp_path / out, **options)

    return run


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 100)


def documents_of(data, name="train"):
    """The tokens of each document of a split."""
    split = data.split(name)
    return [] if split is None else [split.read(a, b).tolist() for a, b in pairwise(split.bounds.tolist())]


def content_of(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def test_documents_come_out_in_order(tmp_path, go, small_batches):
    texts = [sentence(number) for number in range(100)]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    data, unchanged = go(source, validation=0, shard_tokens=100)
    assert not unchanged
    assert documents_of(data) == [ids_of(text) for text in texts]
    manifest = data.manifest
    assert len(manifest.splits["train"].shards) > 3
    assert all(shard.tokens >= 100 for shard in manifest.splits["train"].shards[:-1])
    assert all(shard.tokens < 111 for shard in manifest.splits["train"].shards)
    assert (manifest.vocab_size, manifest.dtype) == (19, "uint16")
    assert (manifest.bos_token_id, manifest.eos_token_id, manifest.add_bos, manifest.add_eos) == (1, 2, True, False)
    assert manifest.sources == [{"path": source.as_posix(), "bytes": source.stat().st_size, "split": "train"}]
    assert data.tokenizer_file.read_bytes() == (tmp_path / "tokenizer" / "tokenizer.json").read_bytes()
    assert {path.name for path in data.path.iterdir()} == {
        "manifest.json",
        "tokenizer.json",
        *(file for shard in manifest.splits["train"].shards for file in (shard.tokens_file, shard.bounds_file)),
    }
    data.verify()


def test_special_tokens_around_documents(tmp_path, go):
    source = write_jsonl(tmp_path / "a.jsonl", ["the cat", "a dog"])
    assert documents_of(go(source, validation=0, add_eos=True).data) == [[1, 3, 5, 2], [1, 4, 6, 2]]
    data = go(source, validation=0, add_bos=False, out="eos").data
    assert documents_of(data) == [[3, 5, 2], [4, 6, 2]]
    data = go(source, validation=0, add_bos=False, add_eos=False, out="none").data
    assert documents_of(data) == [[3, 5], [4, 6]]


def test_documents_without_text_are_left_out(tmp_path, go):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "the"}\n{"text": " \\n"}\n{"text": null}\n{"text": "a \\ud800"}\n')
    data = go(source, validation=0).data
    assert documents_of(data) == [[1, 3], [1, 4, 0]]
    assert data.manifest.skipped == {"without text": 2}


def test_large_vocabulary(tmp_path, go):
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {"<s>": 0, **{str(number): number + 1 for number in range(65_536)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<s>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "large.json"))
    source = write_jsonl(tmp_path / "a.jsonl", ["65535 3"])
    data = go(source, validation=0, tokenizer=tmp_path / "large.json").data
    assert data.manifest.dtype == "uint32"
    assert documents_of(data) == [[0, 65_536, 4]]


def test_split_is_by_text_and_not_by_order(tmp_path, go):
    texts = [sentence(number) for number in range(400)]
    first = write_jsonl(tmp_path / "a.jsonl", texts + texts[:200])
    shuffled = texts + texts[:200]
    random.Random(0).shuffle(shuffled)
    second = write_jsonl(tmp_path / "b.jsonl", shuffled)
    a = go(first, validation=0.2).data
    b = go(second, validation=0.2, out="other").data
    train, validation = documents_of(a), documents_of(a, "validation")
    assert len(train) + len(validation) == 600
    assert not {tuple(each) for each in train} & {tuple(each) for each in validation}
    assert 50 < len({tuple(each) for each in validation}) < 115  # 80 ± 4.4 σ
    assert sorted(documents_of(b, "validation")) == sorted(validation)
    assert sorted(documents_of(b)) == sorted(train)


def test_no_document_for_validation(tmp_path, go):
    data = go(write_jsonl(tmp_path / "a.jsonl", ["the cat"])).data
    assert data.split("validation") is None
    assert data.manifest.options["validation"] == 0.005
    assert not list(data.path.glob("validation*"))


def test_validation_from_other_sources(tmp_path, go):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", ["the cat", "a dog", "it was red", "a dog"])
    held_out = write_jsonl(folder / "validation.jsonl", ["a dog", "under the tree"])
    data = go(folder, validation_from=[held_out]).data
    assert documents_of(data) == [ids_of("the cat"), ids_of("it was red")]
    assert documents_of(data, "validation") == [ids_of("a dog"), ids_of("under the tree")]
    assert data.manifest.skipped == {"also in the validation split": 2}
    assert [source["split"] for source in data.manifest.sources] == ["train", "validation"]


def test_nothing_left_for_training(tmp_path, go):
    source = write_jsonl(tmp_path / "a.jsonl", ["the cat", "", "a dog"])
    same = write_jsonl(tmp_path / "b.jsonl", ["a dog", "the cat"])
    message = (
        r"no documents are left for training in .*a\.jsonl: 2 are in the validation split, 2 are also in .*, 1 are"
    )
    with pytest.raises(ValueError, match=message):
        go(source, validation_from=[same])
    assert list((tmp_path / "out").iterdir()) == []  # other arguments need no --fresh
    with pytest.raises(ValueError, match="at least one file or data set that is not in validation_from"):
        go(source, validation_from=[source])
    (tmp_path / "blank.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match=r"blank\.jsonl has no documents"):
        go(tmp_path / "blank.jsonl")
    assert documents_of(go(source, validation=0).data) == [ids_of("the cat"), ids_of("a dog")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": "pages"}, "documents must be one of file, blank-lines, lines, got 'pages'"),
        ({"validation": 1.0}, r"validation must be a fraction in \[0, 1\), got 1.0"),
        ({"validation": -0.1}, r"validation must be a fraction in \[0, 1\), got -0.1"),
        ({"validation": 0.1, "validation_from": ["x"]}, "validation must be 0 with validation_from, got 0.1"),
        ({"shard_tokens": 0}, "shard_tokens must be positive, got 0"),
    ],
)
def test_wrong_arguments(tmp_path, go, options, message):
    with pytest.raises(ValueError, match=message):
        go(write_jsonl(tmp_path / "a.jsonl", ["the cat"]), **options)
    assert not (tmp_path / "out").exists()


def test_run_again_does_nothing(tmp_path, go):
    source = write_jsonl(tmp_path / "a.jsonl", ["the cat"])
    go(source)
    before = content_of(tmp_path / "out"), (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    data, unchanged = go(source)
    assert unchanged
    assert documents_of(data) == [ids_of("the cat")]
    assert (content_of(tmp_path / "out"), (tmp_path / "out" / "manifest.json").stat().st_mtime_ns) == before


def test_other_arguments_need_fresh(tmp_path, go):
    source = write_jsonl(tmp_path / "a.jsonl", ["the cat", "a dog"])
    more = write_jsonl(tmp_path / "b.jsonl", ["it was red"])
    go(source, validation=0)
    other = save_tokenizer(tmp_path / "other.json", special=("<unk>", "<s>"))
    for sources, options, message in (
        ([source], {"tokenizer": other}, "the tokenizer is another one"),
        ([source], {"validation": 0.1}, "validation was 0.0 and is 0.1"),
        ([source], {"shard_tokens": 7}, "shard_tokens was 67108864 and is 7"),
        ([source], {"add_eos": True}, "add_eos was False and is True"),
        ([source], {"bos_token": "cat"}, "bos_token_id was 1 and is 5"),
        ([source, more], {}, r"source 2 was absent and is .*b\.jsonl"),
        ([more], {}, r"source 1 was .*a\.jsonl and is .*b\.jsonl"),
    ):
        with pytest.raises(ValueError, match=f"was prepared with other arguments: {message}. Start again with --fresh"):
            go(*sources, **{"validation": 0} | options)
    same = save_tokenizer(tmp_path / "copy.json")  # the name of the tokenizer does not count
    assert go(source, validation=0, tokenizer=same).unchanged
    write_jsonl(source, ["the cat", "a dog", "a dog"])
    with pytest.raises(ValueError, match=r"bytes of .*a\.jsonl was \d+ and is \d+\. Start again with --fresh"):
        go(source, validation=0)
    data, unchanged = go(source, validation=0, fresh=True)
    assert not unchanged
    assert data.split("train").documents == 3


def test_fresh_leaves_no_file_of_before(tmp_path, go):
    source = write_jsonl(tmp_path / "a.jsonl", [sentence(number) for number in range(50)])
    go(source, shard_tokens=20, validation=0.3)
    (tmp_path / "out" / "packed-train-8.bin").write_bytes(b"old")
    go(source, shard_tokens=10_000, validation=0, fresh=True)
    go(source, shard_tokens=10_000, validation=0, out="new")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "new")


@pytest.mark.parametrize("fresh", [False, True])
def test_files_of_others_are_left_alone(tmp_path, go, fresh):
    source = write_jsonl(tmp_path / "a.jsonl", ["the cat"])
    before = content_of(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match=r"out must be a new or empty directory, got .*, which holds tokenizer\.json"):
        go(source, out="tokenizer", fresh=fresh)
    assert content_of(tmp_path / "tokenizer") == before
    with pytest.raises(ValueError, match="out must be a directory, got the file"):
        go(source, out="a.jsonl", fresh=fresh)


def test_error_after_documents_keeps_them_and_before_keeps_nothing(tmp_path, go, small_batches):
    source = write_jsonl(tmp_path / "a.jsonl", [sentence(number) for number in range(50)])
    with source.open("a") as file:
        file.write("broken\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 51 is not JSON"):
        go(source, save_every=0)
    with pytest.raises(ValueError, match="is not complete"):
        TokenData(tmp_path / "out")
    with pytest.raises(ValueError, match=r"line 1: no column 'body'"):
        go(source, column="body", out="second")
    assert list((tmp_path / "second").iterdir()) == []


def test_one_broken_line_in_a_thousand_is_left_out_and_counted(tmp_path, go, small_batches):
    texts = [sentence(number) for number in range(2100)]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    whole = go(source, out="whole", validation=0)
    lines = source.read_text().splitlines(keepends=True)
    broken = tmp_path / "b.jsonl"
    broken.write_bytes("".join([*lines[:1500], '{"text": "cut o\n', *lines[1500:]]).encode() + b'{"text": "\xff"}\n')
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        return calls == 100  # between the two broken lines

    with pytest.raises(KeyboardInterrupt):
        go(broken, out="some", validation=0, interrupted=stop)
    some = go(broken, out="some", validation=0)
    assert some.data.manifest.skipped == {"on lines that are not JSON": 2}
    assert some.data.split("train").tokens == whole.data.split("train").tokens
    broken.write_bytes(broken.read_bytes() + b"{\n")  # the third in 2,103 lines
    with pytest.raises(ValueError, match=r"b\.jsonl, line 2103 is not JSON"):
        go(broken, out="many", validation=0)


def test_progress_counts_to_the_end(tmp_path, go, small_batches):
    sources = [write_jsonl(tmp_path / name, [sentence(n) for n in range(40)]) for name in ("a.jsonl", "b.jsonl")]
    calls = []
    data = go(*sources, progress=calls.append).data
    total = sum(source.stat().st_size for source in sources)
    assert (calls[-1].bytes_read, calls[-1].bytes_total) == (total, total)
    assert calls[-1].documents == sum(split.documents for split in data.manifest.splits.values()) == 80
    assert calls[-1].tokens == sum(split.tokens for split in data.manifest.splits.values())
    assert [call.bytes_read for call in calls] == sorted(call.bytes_read for call in calls)
    assert len(calls) > 15


def sources_of_two_forms(tmp_path):
    """A JSON lines file with ten empty documents, and a text file of lines."""
    write_jsonl(tmp_path / "a.jsonl", [text for n in range(120) for text in ("", sentence(n))[n % 12 > 0 :]])
    (tmp_path / "b.txt").write_text("\n".join(sentence(number) for number in range(100, 200)))
    return tmp_path / "a.jsonl", tmp_path / "b.txt"


def test_interrupted_after_every_batch_gives_the_same_bytes(tmp_path, go, small_batches):
    sources = sources_of_two_forms(tmp_path)
    options = {"documents": "lines", "validation": 0.1, "shard_tokens": 150}
    whole = go(*sources, out="whole", **options).data
    assert len(documents_of(whole)) + len(documents_of(whole, "validation")) == 220
    assert whole.manifest.skipped == {"without text": 10}
    interruptions = 0
    while True:
        calls = []
        try:
            go(*sources, **options, progress=calls.append, interrupted=lambda calls=calls: len(calls) == 2)
        except KeyboardInterrupt:
            interruptions += 1
            assert calls[0].tokens_before < calls[0].tokens
            saved = json.loads((tmp_path / "out" / "progress.json").read_text())["state"]
            assert saved["documents"] == calls[-1].documents
            # What was written after the last save does not count.
            for file in (tmp_path / "out").glob("*.bin"):
                if not any(
                    file.name.startswith(shard["name"]) for w in saved["writers"].values() for shard in w["closed"]
                ):
                    with file.open("ab") as opened:
                        opened.write(b"torn")
            for name in ("train-00099.bin", "progress.json.99.tmp"):
                (tmp_path / "out" / name).write_bytes(b"begun")
            continue
        break
    assert interruptions > 20
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_other_arguments_after_an_interruption(tmp_path, go, small_batches):
    source, _ = sources_of_two_forms(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        go(source, interrupted=lambda: True)
    with pytest.raises(ValueError, match=r"validation was 0\.005 and is 0\.25\. Start again with --fresh"):
        go(source, validation=0.25)
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"train-00000\.bin must have at least .* bytes, got .*: start again with --fresh"
    ):
        go(source)
    assert go(source, fresh=True).data.split("train").documents > 100


def test_one_preparation_at_a_time(tmp_path, go, small_batches):
    pytest.importorskip("fcntl")
    source, _ = sources_of_two_forms(tmp_path)

    def second(progress):
        with pytest.raises(ValueError, match="out is being prepared by another process"):
            go(source)

    go(source, progress=second)


# Imports once, and for each line of its input prepares in a process of its own.
PREPARING = """
import os, sys, time
from swila.data import preparation
preparation.BATCH_CHARACTERS = 100
source, tokenizer, out = sys.argv[1:]
for line in sys.stdin:
    if (child := os.fork()) == 0:
        preparation.prepare([source], tokenizer, out, validation=0.1, shard_tokens=200, save_every=0.0,
                            progress=lambda progress: time.sleep(0.01))
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_killed_at_any_moment_gives_the_same_bytes(tmp_path, go, small_batches):
    source = write_jsonl(tmp_path / "a.jsonl", [sentence(number) for number in range(600)])
    go(source, out="whole", validation=0.1, shard_tokens=200)
    arguments = [str(source), str(tmp_path / "tokenizer" / "tokenizer.json"), str(tmp_path / "out")]
    progress = tmp_path / "out" / "progress.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = 0
    with subprocess.Popen(
        [sys.executable, "-c", PREPARING, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        for attempt in range(5):
            process.stdin.write("again\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            until = time.monotonic() + 60
            while (now := _documents(progress)) <= done and time.monotonic() < until:
                time.sleep(0.002)
            assert now > done, "it does not continue"
            time.sleep(0.003 * attempt)
            os.kill(child, signal.SIGKILL)
            assert int(process.stdout.readline()) == signal.SIGKILL, "it had ended"
            done = _documents(progress)
    assert not go(source, validation=0.1, shard_tokens=200).unchanged
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def _documents(progress):
    try:
        return json.loads(progress.read_text())["state"]["documents"]
    except FileNotFoundError:
        return 0


def test_data_set_is_prepared_through_interruptions(tmp_path, go, small_batches, monkeypatch):
    pytest.importorskip("datasets")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    texts = [sentence(number) for number in range(60)]
    for number in range(3):
        table = arrow.table({"text": texts[number * 20 : number * 20 + 20]})
        parquet.write_table(table, folder / f"train-{number:05d}-of-00003.parquet", row_group_size=7)
    with pytest.raises(KeyboardInterrupt):
        go(folder, subset="default", validation=0, interrupted=lambda: True)
    data = go(folder, subset="default", validation=0).data
    assert documents_of(data) == [ids_of(text) for text in texts]
    assert data.manifest.sources == [
        {"dataset": str(folder), "subset": "default", "dataset_split": "train", "split": "train"}
    ]
    assert content_of(go(folder, subset="default", validation=0, out="whole").data.path) == content_of(data.path)
