"""Sources: every form gives its documents, continues anywhere, and names what is wrong with it."""

import gzip
import json
import sys

import pytest

from swila.data.file_sources import FileSource
from swila.data.find_sources import find_sources
from swila.data.hub_source import HubSource

TEXTS = ["the cat", "a dog\nran", "ünder the träe", "it was red", "x", "the mat and the tree"]


def found(*names, column="text", documents="file", subset=None, split="train"):
    return find_sources(names, column=column, documents=documents, subset=subset, split=split)


def read(source, position=None):
    return list(source.open(position))


def write_jsonl(path, texts, column="text"):
    lines = "".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def write_parquet(path, texts, column="text", rows=2):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table({"id": list(range(len(texts))), column: texts}), path, row_group_size=rows)
    return path


def write_data_set(path, texts):
    """A data set in the form of the hub: two files of the subset ``sample``, and a card that names them."""
    write_parquet(path / "sample" / "train-00000-of-00002.parquet", texts[:4])
    write_parquet(path / "sample" / "train-00001-of-00002.parquet", texts[4:])
    write_parquet(path / "other" / "train.parquet", ["another subset"])
    lines = ["---", "configs:"]
    for name in ("sample", "other"):
        lines += [f"- config_name: {name}", "  data_files:", "  - split: train", f"    path: {name}/*"]
    (path / "README.md").write_text("\n".join([*lines, "---", ""]))
    return path


@pytest.fixture
def every_form(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def make(form):
        if form == "jsonl":
            return found(write_jsonl(tmp_path / "a.jsonl", TEXTS))[0]
        if form == "jsonl.gz":
            return found(write_jsonl(tmp_path / "a.jsonl.gz", TEXTS))[0]
        if form == "parquet":
            return found(write_parquet(tmp_path / "a.parquet", TEXTS))[0]
        if form == "data set":
            pytest.importorskip("datasets")
            return found(write_data_set(tmp_path / "owner" / "name", TEXTS), subset="sample")[0]
        path = tmp_path / "a.txt"
        separator = {"lines": "\n", "blank-lines": "\n \n\n"}[form]
        path.write_text(separator.join(text.replace("\n", " ") if form == "lines" else text for text in TEXTS))
        return found(path, documents=form)[0]

    return make


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "data set", "lines", "blank-lines"])
def test_every_form_gives_its_documents_from_every_position(every_form, form):
    source = every_form(form)
    texts = [text.replace("\n", " ") for text in TEXTS] if form == "lines" else TEXTS
    reader = source.open(None)
    iterator = iter(reader)
    for done in range(1, len(texts) + 1):
        assert next(iterator) == texts[done - 1]
        position = json.loads(json.dumps(reader.position()))
        assert read(source, position) == texts[done:]
    assert next(iterator, None) is None
    if source.size is not None:
        assert reader.bytes_read == source.size


def test_data_set_continues_with_another_version_of_datasets(every_form):
    source = every_form("data set")
    assert isinstance(source, HubSource)
    reader = source.open(None)
    iterator = iter(reader)
    for _ in range(5):
        next(iterator)
    assert read(source, reader.position() | {"datasets": "0.0", "state": {}}) == TEXTS[5:]
    assert source.describe()["subset"] == "sample"


def test_text_file_is_one_document(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\n")
    (source,) = found(path)
    assert read(source) == ["one\r\n\r\ntwo\n"]
    assert read(source, {"after": 1}) == []
    assert read(found(path, documents="blank-lines")[0]) == ["one", "two"]
    assert read(found(path, documents="lines")[0]) == ["one", "", "two"]
    compressed = tmp_path / "book.txt.gz"
    compressed.write_bytes(gzip.compress("zwölf".encode()))
    assert read(found(compressed)[0]) == ["zwölf"]
    unknown = tmp_path / "LICENSE"
    unknown.write_text("text whatever its name")
    assert read(found(unknown)[0]) == ["text whatever its name"]


def test_folders_are_read_recursively_in_order(tmp_path):
    folder = tmp_path / "folder"
    for name in (
        "b.txt",
        "a/z.txt",
        "a/c.jsonl.gz",
        ".hidden/x.txt",
        "a/.y.txt",
        "README.md",
        "a/data.json",
        "w.txt.gz",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("any")
    names = [source.path.relative_to(folder).as_posix() for source in found(folder)]
    assert names == ["a/c.jsonl.gz", "a/z.txt", "b.txt", "w.txt.gz"]


def test_names_that_do_not_exist_are_data_sets_or_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = found("owner/name.v1", subset="sample-100BT", split="test", column="body")
    assert source == HubSource("owner/name.v1", "sample-100BT", "test", "body")
    assert source.name == "owner/name.v1/sample-100BT/test"
    for name in ("absent.txt", "a/b/c", "./owner/name", "/owner/name"):
        with pytest.raises(
            ValueError, match=rf"source {name} does not exist\. Sources are files or folders of text \("
        ):
            found(name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"folder empty has no files that can be read; these can: text \(\.txt\), JSON"
    ):
        found("empty")
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a\.zip has a format that cannot be read; these can: text"):
        found("a.zip")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a\.txt is empty"):
        found("a.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nb\xffd", r"a\.txt is not UTF-8: byte 0xff at 6"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\xff"}\n', r"a\.jsonl, line 2 is not UTF-8: byte 0xff at 11"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', r"a\.jsonl, line 3 is not JSON: Expecting value"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl, line 1 must be a JSON object, got list"),
        ("a.jsonl", b'{"id": 3, "body": "x"}', r"a\.jsonl, line 1: no column 'text', choose .* --column: id, body"),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl, line 1: column 'text' must be text, got int"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9],
            r"a\.jsonl\.gz, after line \d+, is a damaged gzip",
        ),
        ("a.txt.gz", b"not gzip", r"a\.txt\.gz is a damaged gzip file"),
        ("a.parquet", b"not parquet", r"a\.parquet is not a readable parquet file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, message):
    if "parquet" in name:
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(found(tmp_path / name)[0])


@pytest.mark.parametrize("form", ["lines", "blank-lines"])
def test_line_that_is_not_utf8(tmp_path, form):
    (tmp_path / "a.txt").write_bytes(b"good\n\nb\xffd")
    with pytest.raises(ValueError, match=r"a\.txt, line 3 is not UTF-8"):
        read(FileSource(tmp_path / "a.txt", "text", form))


def test_columns_of_parquet_and_data_sets(tmp_path, every_form):
    path = write_parquet(tmp_path / "b.parquet", TEXTS, column="body")
    assert read(found(path, column="body")[0]) == TEXTS
    with pytest.raises(ValueError, match=r"b\.parquet: no column 'text', choose one of these with --column: id, body"):
        read(found(path)[0])
    with pytest.raises(ValueError, match=r"b\.parquet, row 1: column 'id' must be text, got int"):
        read(found(path, column="id")[0])
    data_set = every_form("data set").path
    with pytest.raises(ValueError, match="sample/train: no column 'body', choose one of these with --column: id, text"):
        read(found(data_set, column="body", subset="sample")[0])
    with pytest.raises(ValueError, match=r"name cannot be opened: .*'absent' not found"):
        read(found(data_set, subset="absent")[0])
    with pytest.raises(ValueError, match="name cannot be opened: Bad split: test"):
        read(found(data_set, subset="sample", split="test")[0])


def test_no_text_is_none(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": ""}\n')
    assert read(found(path)[0]) == [None, ""]


def test_data_set_that_breaks_off(every_form, monkeypatch):
    reader = every_form("data set").open(None)

    class Broken:
        def __iter__(self):
            yield {"text": "the cat"}
            raise RuntimeError("connection lost\nand more")

    monkeypatch.setattr(reader, "_data", Broken())
    iterator = iter(reader)
    assert next(iterator) == "the cat"
    with pytest.raises(ValueError, match=r"sample/train, after row 1: connection lost\. The same command continues$"):
        next(iterator)


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"any")
    with pytest.raises(ValueError, match=r"needs the package pyarrow .* pip install 'swila\[data\]'"):
        read(found(tmp_path / "a.parquet")[0])
