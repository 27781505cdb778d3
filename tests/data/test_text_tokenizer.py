"""Tokenizers: where they are found, and which tokens separate documents."""

import json

import pytest

from swila.data.tokenizer import SpecialTokens, TextTokenizer
from text_data import word_tokenizer


def special(path, **options):
    return TextTokenizer(path).special_tokens(**options)


def test_ids_of_texts_without_special_tokens(make_tokenizer):
    tokenizer = TextTokenizer(make_tokenizer())
    ids = tokenizer.encode(["the cat", "", "the<s>cat unheard"])
    assert [each.tolist() for each in ids] == [[3, 5], [], [0, 0]]
    assert tokenizer.decode([1, 3, 5]) == "<s> the cat"
    assert tokenizer.vocab_size == 19


def test_truncation_padding_and_post_processor_do_not_apply(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(tmp_path).encode(["the a cat dog"])[0].tolist() == [3, 4, 5, 6]


def test_vocabulary_counts_added_tokens(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["green", "yellow"])
    tokenizer.save(str(tmp_path / "t.json"))
    assert TextTokenizer(tmp_path / "t.json").vocab_size == 21


def test_directory_and_file_are_the_same_tokenizer(make_tokenizer):
    file = make_tokenizer("dir/tokenizer.json")
    from_file, from_directory = TextTokenizer(file), TextTokenizer(file.parent)
    assert from_file.sha256 == from_directory.sha256
    assert from_file.content == file.read_bytes()


def test_hub_name(make_tokenizer, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    folder = make_tokenizer("hub/tokenizer.json").parent
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": None}))
    asked = []

    def download(name, file):
        asked.append((name, file))
        if name != "owner/model":
            raise OSError(f"404 for {name}\nlong text")
        return str(folder / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert special("owner/model") == SpecialTokens(None, 2, False, True)
    assert asked == [("owner/model", "tokenizer.json"), ("owner/model", "tokenizer_config.json")]
    with pytest.raises(ValueError, match=r"tokenizer gpt9 is no file .* cannot be had from the hub: 404 for gpt9$"):
        TextTokenizer("gpt9")


def test_tokenizers_that_cannot_be_read(tmp_path):
    pytest.importorskip("tokenizers")
    for name in ("absent.json", "tokenizer.model", "a/b/c"):
        with pytest.raises(ValueError, match=f"tokenizer .*{name} does not exist"):
            TextTokenizer(tmp_path / name)
    with pytest.raises(ValueError, match=r"is a directory without tokenizer\.json"):
        TextTokenizer(tmp_path)
    for content in (b"{}", b"\xff\xfe", b"3"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.json is not a valid tokenizer\.json"):
            TextTokenizer(tmp_path / "bad.json")


def test_default_is_bos_else_eos(make_tokenizer):
    assert special(make_tokenizer()) == SpecialTokens(1, 2, True, False)
    assert special(make_tokenizer(special=("<unk>", "<|endoftext|>"))) == SpecialTokens(None, 1, False, True)
    assert special(make_tokenizer(special=("<unk>", "<bos>"))) == SpecialTokens(1, None, True, False)


def test_chosen_special_tokens(make_tokenizer):
    path = make_tokenizer()
    assert special(path, add_eos=True) == SpecialTokens(1, 2, True, True)
    assert special(path, add_bos=False) == SpecialTokens(1, 2, False, True)
    assert special(path, add_bos=False, add_eos=False) == SpecialTokens(1, 2, False, False)
    assert special(path, bos_token="cat", eos_token="dog") == SpecialTokens(5, 6, True, False)
    with pytest.raises(ValueError, match=r"bos_token must be a token of .*, got 'zebra'"):
        special(path, bos_token="zebra")


def test_tokenizer_without_special_tokens(make_tokenizer):
    path = make_tokenizer(special=("<unk>",))
    with pytest.raises(ValueError, match="--bos-token TEXT or --eos-token TEXT, or use --no-bos --no-eos"):
        special(path)
    with pytest.raises(ValueError, match="has no BOS token: name it with --bos-token TEXT"):
        special(path, add_bos=True)
    with pytest.raises(ValueError, match="has no EOS token: name it with --eos-token TEXT"):
        special(path, add_bos=False, add_eos=True)
    assert special(path, add_bos=False, add_eos=False) == SpecialTokens(None, None, False, False)
    assert special(path, eos_token="blue") == SpecialTokens(None, 16, False, True)


def test_configuration_comes_first_then_post_processor_then_names(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = word_tokenizer(special=("<unk>", "<s>", "</s>", "<begin>", "<end>"))
    template = tokenizers.processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", 3), ("<end>", 4)]
    )
    tokenizer.post_processor = tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(), template])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert special(tmp_path) == SpecialTokens(3, 4, True, False)
    config = {"bos_token": {"content": "</s>"}, "eos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert special(tmp_path) == special(tmp_path / "tokenizer.json") == SpecialTokens(2, 1, True, False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": None}))
    assert special(tmp_path) == SpecialTokens(None, 4, False, True)
