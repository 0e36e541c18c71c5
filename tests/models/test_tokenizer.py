"""`Tokenizer` over files of model folders: special text, ends, and text from bytes."""

import codecs
import json
import random
import threading

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from models.text_corpus import CORPUS, mixed_texts
from octavo.errors import CheckpointError, RequestError, UnsupportedModelError
from octavo.models.hf_tokenizer import read_hf_tokenizer

CONFIG = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}


def train_backend(*, adds_bos: bool = True) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    return backend


@pytest.fixture
def tokenizer(tmp_path):
    train_backend().save(str(tmp_path / "tokenizer.json"))
    return read_hf_tokenizer(tmp_path, CONFIG)


def test_ids_and_text_equal_the_library_s(tokenizer):
    backend = train_backend()
    for text in CORPUS + mixed_texts(200, seed=5):
        ids = tokenizer.encode(text, parse_special=True)
        assert ids == backend.encode(text).ids[text.startswith("<s>") :]  # the library writes two beginnings then
        assert tokenizer.decode(ids) == backend.decode(ids)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ends_are_found_by_their_text(tokenizer):
    assert tokenizer.token_text(tokenizer.bos_id) == "<s>"
    assert tokenizer.token_text(tokenizer.eos_id) == "</s>"
    assert tokenizer.adds_bos
    assert tokenizer.encode("") == [tokenizer.bos_id]
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_special_text_is_text_unless_asked(tokenizer):
    assert tokenizer.eos_id not in tokenizer.encode("a</s>b")
    assert tokenizer.eos_id in tokenizer.encode("a</s>b", parse_special=True)
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == "a</s>b"
    tool = tokenizer.token_id("<tool>")
    assert tool in tokenizer.encode("a<tool>b")
    assert not tokenizer.is_special(tool)


def test_no_prompt_begins_with_two_bos_tokens(tokenizer):
    bos = tokenizer.bos_id
    assert tokenizer.encode("<s>hi", parse_special=True).count(bos) == 1
    assert tokenizer.encode_chat("<s>hi").count(bos) == 1
    assert tokenizer.encode_chat("hi")[0] == bos
    assert tokenizer.encode_chat("hi").count(bos) == 1


def test_a_chat_gets_no_bos_that_the_model_s_prompts_lack(tmp_path):
    train_backend(adds_bos=False).save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_hf_tokenizer(tmp_path, CONFIG)
    assert not tokenizer.adds_bos
    assert tokenizer.bos_id not in tokenizer.encode_chat("hi")


def test_bytes_of_any_token_run_make_its_text(tokenizer):
    draw = random.Random(11)
    all_bytes = tokenizer.all_token_bytes()
    assert len(all_bytes) == tokenizer.vocab_size
    for _ in range(300):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randint(0, 30))]
        for skip in (True, False):
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            kept = [token for token in ids if not (skip and tokenizer.is_special(token))]
            streamed = "".join(decoder.decode(all_bytes[token]) for token in kept) + decoder.decode(b"", final=True)
            assert streamed == tokenizer.decode(ids, skip_special_tokens=skip)


def test_ordinary_text_is_that_of_whole_characters_outside_control_tokens(tokenizer):
    for token_id in range(tokenizer.vocab_size):
        text, data = tokenizer.ordinary_text(token_id), tokenizer.token_bytes(token_id)
        is_whole = data.decode(errors="replace").encode() == data
        assert text == (data.decode() if is_whole and not tokenizer.is_special(token_id) else None)
        assert tokenizer.ordinary_text(token_id) == text
    assert tokenizer.ordinary_text(tokenizer.eos_id) is None
    assert any(tokenizer.ordinary_text(token_id) is None for token_id in range(3, tokenizer.vocab_size))


def test_an_id_beyond_the_vocabulary_has_no_text(tokenizer):
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_is_refused(tokenizer, text):
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode(text)


def test_threads_do_not_see_each_other_s_choice(tokenizer):
    expected = {parse: tokenizer.encode("a</s>b" * 50, parse_special=parse) for parse in (True, False)}
    wrong = []

    def work(parse: bool) -> None:
        for _ in range(200):
            if tokenizer.encode("a</s>b" * 50, parse_special=parse) != expected[parse]:
                wrong.append(parse)

    threads = [threading.Thread(target=work, args=(place % 2 == 0,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    backend = train_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = read_hf_tokenizer(tmp_path, CONFIG).encode("one two three four five six")
    assert ids == train_backend().encode("one two three four five six").ids


def sentencepiece_backend() -> Backend:
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257, "a": 258, "▁a": 259}
    backend = Backend(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def test_sentencepiece_tokens_have_their_bytes(tmp_path):
    sentencepiece_backend().save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_hf_tokenizer(tmp_path, {})
    ids = tokenizer.encode("a a é")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"a", b" a", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "a a é"
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)


def test_a_decoder_of_another_kind_is_refused(tmp_path):
    backend = sentencepiece_backend()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        read_hf_tokenizer(tmp_path, {})


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        read_hf_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model"):
        read_hf_tokenizer(tmp_path, {})
    for text in ("", "{}", "[1]", json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": 3}})):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(CheckpointError, match="damaged"):
            read_hf_tokenizer(tmp_path, {})


@pytest.mark.parametrize("token", ["<none>", 7, {"content": ["x"]}])
def test_a_named_token_that_does_not_exist_is_refused(tmp_path, token):
    train_backend().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="eos_token"):
        read_hf_tokenizer(tmp_path, {"eos_token": token})
