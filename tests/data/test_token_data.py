"""Token directories: what is read is what was written, and damage is found."""

import json
import pickle

import numpy as np
import pytest

from swila.data import TokenData, write_tokens


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_tokens_of_several_shards(token_data, vocab_size, dtype):
    data = token_data([5, 1, 7, 3, 3], vocab_size=vocab_size, shard_tokens=6, validation=[4])
    assert data.manifest.dtype == dtype
    shards = data.manifest.splits["train"].shards
    assert [(shard.name, shard.tokens, shard.documents) for shard in shards] == [
        ("train-00000", 6, 2),
        ("train-00001", 7, 1),
        ("train-00002", 6, 2),
    ]
    assert np.fromfile(data.path / "train-00002.bounds.bin", dtype="<i8").tolist() == [0, 3, 6]
    assert np.fromfile(data.path / "train-00001.bin", dtype=dtype).tolist() == list(range(7, 14))
    split = data.split("train")
    assert (split.name, split.tokens, split.documents) == ("train", 19, 5)
    assert split.bounds.tolist() == [0, 5, 6, 13, 16, 19]
    assert split.bounds.dtype == np.int64
    for start in range(20):
        for stop in range(start, 20):
            assert split.read(start, stop).tolist() == list(range(start + 1, stop + 1))
    for start, stop in ((-1, 3), (3, 2), (0, 20)):
        with pytest.raises(ValueError, match="within the 19 tokens of train"):
            split.read(start, stop)
    assert data.split("validation").tokens == 4
    data.verify()


def test_split_without_documents_is_none(token_data):
    assert token_data([3]).split("validation") is None


def test_pickled_split_has_no_tokens_in_it(token_data):
    split = token_data([30_000]).split("train")
    split.read(0, 10)
    assert split.bounds.tolist() == [0, 30_000]
    pickled = pickle.dumps(split)
    assert len(pickled) < 2_000
    assert pickle.loads(pickled).read(7, 9).tolist() == [8, 9]


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match="below vocab_size 10, got 10"):
        write_tokens(tmp_path / "tokens", {"train": [[1, 10]]}, tmp_path / "t.json", 10)


def test_fingerprint_depends_on_the_tokens_and_not_on_the_place(token_data):
    first = token_data([5, 4], name="a")
    assert token_data([5, 4], name="b").fingerprint == first.fingerprint
    assert token_data([4, 5], name="c").fingerprint != first.fingerprint
    assert token_data([5, 4], name="d", validation=[1]).fingerprint != first.fingerprint
    assert token_data([5, 4], name="e", vocab_size=70_000).fingerprint != first.fingerprint
    manifest = json.loads((first.path / "manifest.json").read_text())
    for changed in ({"add_bos": True}, {"eos_token_id": 2}, {"tokenizer_sha256": "0"}):
        (first.path / "manifest.json").write_text(json.dumps(manifest | changed))
        assert TokenData(first.path).fingerprint != first.fingerprint


@pytest.mark.parametrize("name", ["train-00000.bin", "train-00001.bounds.bin", "validation-00000.bin"])
def test_file_of_the_wrong_size(token_data, name):
    data = token_data([5, 4], shard_tokens=5, validation=[2])
    with (data.path / name).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=f"{name} must have .* bytes, got"):
        TokenData(data.path)


@pytest.mark.parametrize("name", ["train-00001.bin", "train-00000.bounds.bin", "tokenizer.json"])
def test_missing_file(token_data, name):
    data = token_data([5, 4], shard_tokens=5)
    (data.path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        TokenData(data.path)


@pytest.mark.parametrize(
    "name", ["train-00000.bin", "train-00001.bounds.bin", "validation-00000.bin", "tokenizer.json"]
)
def test_verify_names_the_corrupt_file(token_data, name):
    data = token_data([5, 4], shard_tokens=5, validation=[2])
    content = bytearray((data.path / name).read_bytes())
    content[-1] ^= 1
    (data.path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is corrupt"):
        TokenData(data.path).verify()


def test_verify_reports_its_progress(token_data):
    data = token_data([5, 4])
    calls = []
    data.verify(lambda done, total: calls.append((done, total)))
    sizes = sum(path.stat().st_size for path in data.path.iterdir() if path.name != "manifest.json")
    assert calls[-1] == (sizes, sizes)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_what_is_no_token_directory(tmp_path, token_data):
    with pytest.raises(
        ValueError, match=r"must be a directory written by swila data prepare: it has no manifest\.json"
    ):
        TokenData(tmp_path / "absent")
    (tmp_path / "progress.json").write_text("{}")
    with pytest.raises(ValueError, match="is not complete: run the same swila data prepare again"):
        TokenData(tmp_path)
    path = token_data([3]).path / "manifest.json"
    good = json.loads(path.read_text())
    for content, message in (
        ("{", "must be a JSON file"),
        ("[]", "must hold a JSON object"),
        (json.dumps(good | {"format": 2}), "must have format 1, got 2"),
        (json.dumps(good | {"dtype": "int8"}), "not a valid manifest"),
        (json.dumps(good | {"surprise": 1}), "not a valid manifest"),
        (json.dumps({key: value for key, value in good.items() if key != "splits"}), "not a valid manifest"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            TokenData(path.parent)
