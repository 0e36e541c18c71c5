"""Tokenizers out of GGUF metadata: the same ids as the vocabulary's definition and as transformers give."""

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from models.text_corpus import CORPUS, mixed_texts
from models.vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, gguf_metadata, join_by_score, sentencepiece_metadata
from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models import gguf_tokenizer
from octavo.models.gguf_tokenizer import build_gguf_tokenizer

TRAINING_TEXTS = CORPUS * 3


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))


def train_byte_level(pre_tokenizer, *, ignore_merges: bool = False) -> Backend:
    backend = Backend(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    return backend


def byte_level_metadata(backend: Backend, pre: str) -> dict:
    """Returns GGUF metadata of a trained tokenizer of the library."""
    model = json.loads(backend.to_str())["model"]
    tokens = dict.fromkeys(sorted(model["vocab"], key=model["vocab"].get), NORMAL) | {"<|end|>": CONTROL}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return gguf_metadata("gpt2", tokens, pre=pre, merges=merges, eos_token_id=0)


def digits_then_gpt2():
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


@pytest.mark.parametrize(
    ("pre", "original"),
    [("smollm", digits_then_gpt2), ("gpt-2", lambda: pre_tokenizers.ByteLevel(add_prefix_space=False))],
)
def test_byte_level_ids_equal_the_tokenizer_that_the_header_was_made_from(pre, original):
    backend = train_byte_level(original())
    tokenizer = build_gguf_tokenizer(byte_level_metadata(backend, pre))
    for text in CORPUS + mixed_texts(300, seed=1):
        backend.encode_special_tokens = True
        assert tokenizer.encode(text) == backend.encode(text).ids, repr(text)


@pytest.mark.parametrize(("pre", "class_name"), [("qwen2", "Qwen2Tokenizer"), ("default", "GPT2Tokenizer")])
def test_byte_level_ids_equal_those_of_the_transformers_class(pre, class_name):
    import transformers

    metadata = byte_level_metadata(train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), pre)
    vocab = {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    oracle = getattr(transformers, class_name)(
        vocab=vocab, merges=merges, unk_token=None, bos_token=None, eos_token="<|end|>", pad_token=None
    )
    tokenizer = build_gguf_tokenizer(metadata)
    for text in CORPUS + mixed_texts(300, seed=2):
        assert tokenizer.encode(text, parse_special=True) == oracle.encode(text), repr(text)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "it'S 12345 x", ["it", "'S", " ", "123", "45", " x"]),
        ("qwen2", "it'S 12345 x", ["it", "'S", " ", "1", "2", "3", "4", "5", " x"]),
        ("tekken", "HelloWorld 123", ["Hello", "World", " ", "1", "2", "3"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("smollm", "it's 12x", ["it", "'s", " ", "1", "2", "x"]),
        ("default", "it's 12x", ["it", "'s", " 12", "x"]),
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_s_name_says(pre, text, pieces):
    splitter = gguf_tokenizer._byte_level_splitter(pre)
    assert [piece.replace("Ġ", " ") for piece, _ in splitter.pre_tokenize_str(text)] == pieces


def test_llama3_vocabularies_look_whole_words_up_first():
    tokens = dict.fromkeys(["a", "b", "c", "ab", "abc"], NORMAL)
    keys = {"merges": ["a b"], "eos_token_id": 0}
    assert build_gguf_tokenizer(gguf_metadata("gpt2", tokens, pre="llama-bpe", **keys)).encode("abc") == [4]
    assert build_gguf_tokenizer(gguf_metadata("gpt2", tokens, pre="gpt-2", **keys)).encode("abc") == [3, 2]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), pieces=st.lists(st.text("ab▁é", min_size=1, max_size=6), unique=True, max_size=30))
def test_sentencepiece_ids_equal_joining_by_score(data, pieces):
    pieces = [*pieces, *(character for character in "ab▁é" if character not in pieces)]  # as every trained vocabulary has them
    metadata = sentencepiece_metadata(pieces, add_space_prefix=False)
    tokenizer = build_gguf_tokenizer(metadata)
    for text in data.draw(st.lists(st.text("ab é日", max_size=14), min_size=1, max_size=5)):
        assert tokenizer.encode(text, add_special_tokens=False) == join_by_score(text.replace(" ", "▁"), metadata), (text, pieces)


def trained_pieces() -> list[str]:
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[], limit_alphabet=250, max_token_length=12, show_progress=False)
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    vocab = backend.get_vocab()
    return sorted(vocab, key=vocab.get)


def test_sentencepiece_ids_on_the_corpus():
    metadata = sentencepiece_metadata(trained_pieces(), add_space_prefix=False)
    tokenizer = build_gguf_tokenizer(metadata)
    for text in CORPUS + mixed_texts(100, seed=3):
        assert tokenizer.encode(text, add_special_tokens=False) == join_by_score(text.replace(" ", "▁"), metadata), repr(text)
        if "▁" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_ids_equal_the_sentencepiece_library_s(add_space_prefix):
    trained = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING_TEXTS),
        model_writer=trained,
        model_type="bpe",
        vocab_size=1400,
        byte_fallback=True,
        character_coverage=0.98,  # so that some characters are spelled in bytes
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_space_prefix,
        minloglevel=2,
    )
    oracle = SentencePieceProcessor(model_proto=trained.getvalue())
    ids = range(oracle.vocab_size())
    types = [
        UNKNOWN if oracle.is_unknown(i) else CONTROL if oracle.is_control(i) else BYTE if oracle.is_byte(i) else NORMAL for i in ids
    ]
    metadata = gguf_metadata(
        "llama",
        dict(zip(map(oracle.id_to_piece, ids), types, strict=True)),
        scores=np.array([oracle.get_score(i) for i in ids], np.float32),
        unknown_token_id=oracle.unk_id(),
        add_space_prefix=add_space_prefix,
    )
    tokenizer = build_gguf_tokenizer(metadata)
    for text in CORPUS + mixed_texts(500, seed=4):
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text), repr(text)


def test_a_space_goes_before_the_text_unless_the_header_says_otherwise():
    pieces = ["▁", "h", "i", "▁h", "▁hi"]
    with_space = build_gguf_tokenizer(sentencepiece_metadata(pieces))
    assert [with_space.token_text(token) for token in with_space.encode("hi", add_special_tokens=False)] == [" hi"]
    assert [with_space.token_text(token) for token in with_space.encode(" hi", add_special_tokens=False)] == [" ", " hi"]
    assert with_space.encode("", add_special_tokens=False) == []
    without = build_gguf_tokenizer(sentencepiece_metadata(pieces, add_space_prefix=False))
    assert [without.token_text(token) for token in without.encode("hi", add_special_tokens=False)] == ["h", "i"]


def test_runs_of_spaces_stored_as_spaces_are_joined_and_other_user_defined_tokens_cut_out():
    metadata = sentencepiece_metadata(["▁", "a", "\n"], user_defined=("  ", "    ", "\n\n", "<tag>"), add_space_prefix=False)
    tokenizer = build_gguf_tokenizer(metadata)
    texts = [tokenizer.token_text(token) for token in tokenizer.encode("a     a\n\n\n<tag>", add_special_tokens=False)]
    assert texts == ["a", "    ", " ", "a", "\n\n", "\n", "<tag>"]
    assert tokenizer.decode(tokenizer.encode("a     a\n\n\n<tag>")) == "a     a\n\n\n<tag>"


def test_special_text_is_text_unless_asked():
    tokenizer = build_gguf_tokenizer(sentencepiece_metadata(list("<s>/ab"), add_space_prefix=False))
    plain = tokenizer.encode("a</s>b", add_special_tokens=False)
    assert len(plain) == 6
    assert not any(map(tokenizer.is_special, plain))
    parsed = tokenizer.encode("a</s>b", add_special_tokens=False, parse_special=True)
    assert [tokenizer.token_text(token) for token in parsed] == ["a", "</s>", "b"]
    assert tokenizer.is_special(parsed[1])
    assert tokenizer.decode(parsed) == "ab"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == "a</s>b"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1, "a"]),
        ({"add_bos_token": False}, ["a"]),
        ({"add_eos_token": True}, [1, "a", 2]),
        ({"bos_token_id": None}, ["a"]),
    ],
)
def test_ends_are_written_as_the_header_says(keys, expected):
    metadata = sentencepiece_metadata(["a"], add_space_prefix=False, **keys)
    metadata = {key: value for key, value in metadata.items() if value is not None}
    letter = metadata["tokenizer.ggml.tokens"].index("a")
    assert build_gguf_tokenizer(metadata).encode("a") == [letter if token == "a" else token for token in expected]


def test_derived_merges_are_kept_and_a_damaged_copy_is_replaced(tmp_path, monkeypatch):
    metadata = sentencepiece_metadata(["a", "b", "ab", "abab"], add_space_prefix=False)
    ids = build_gguf_tokenizer(metadata).encode("ababab")
    (kept,) = (tmp_path / "merges").iterdir()
    kept.write_bytes(kept.read_bytes()[:-3])
    assert build_gguf_tokenizer(metadata).encode("ababab") == ids
    np.save(kept, np.full((2, 2), 10**6, np.int32))
    assert build_gguf_tokenizer(metadata).encode("ababab") == ids

    def fail(*_):
        raise AssertionError("derived again")

    monkeypatch.setattr(gguf_tokenizer, "derive_merges", fail)
    assert build_gguf_tokenizer(metadata).encode("ababab") == ids
    with pytest.raises(AssertionError, match="derived again"):
        build_gguf_tokenizer(sentencepiece_metadata(["a", "b", "ba"]))


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    assert build_gguf_tokenizer(sentencepiece_metadata(["a"], add_space_prefix=False)).encode("a", add_special_tokens=False)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "bert"}, UnsupportedModelError, "'bert'; supported: 'gpt2', 'llama'"),
        ({"tokens": None}, CheckpointError, "tokens is missing"),
        ({"tokens": "abc"}, CheckpointError, "tokens is missing or no array of strings"),
        ({"token_type": np.zeros(3, np.int32)}, CheckpointError, "token_type has 3 entries"),
        ({"tokens": np.zeros(3, np.int32)}, CheckpointError, "tokens is missing or no array of strings"),
        ({"scores": ["a"]}, CheckpointError, "scores is missing or no array of numbers"),
        ({"scores": np.zeros(1, np.float32)}, CheckpointError, "scores has 1 entries"),
        ({"bos_token_id": 10**6}, CheckpointError, "bos_token_id is 1000000"),
        ({"eos_token_id": "</s>"}, CheckpointError, "eos_token_id is '</s>'"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(change, error, message):
    metadata = sentencepiece_metadata(["a", "b"]) | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(error, match=message):
        build_gguf_tokenizer(metadata)


@pytest.mark.parametrize("merges", [["a x"], ["a c"], ["a"], ["a b c"], None])
def test_merges_that_do_not_fit_the_tokens_are_refused(merges):
    tokens = dict.fromkeys(["a", "b", "c", "ab"], NORMAL)
    with pytest.raises(CheckpointError, match="merges"):
        build_gguf_tokenizer(gguf_metadata("gpt2", tokens, merges=merges))


def test_an_unknown_pre_tokenizer_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="'klingon'; supported: default, gpt-2"):
        build_gguf_tokenizer(gguf_metadata("gpt2", {"a": NORMAL}, merges=[], pre="klingon"))


def test_an_absurdly_long_piece_is_refused():
    with pytest.raises(CheckpointError, match="has 100000 characters"):
        build_gguf_tokenizer(sentencepiece_metadata(["a", "a" * 100_000]))


def test_user_defined_tokens_match_also_without_parsing_special_text():
    tokens = {**dict.fromkeys(list("<think>ab"), NORMAL), "<think>": USER_DEFINED}
    tokenizer = build_gguf_tokenizer(gguf_metadata("gpt2", tokens, merges=[]))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("a<think>b")] == ["a", "<think>", "b"]
