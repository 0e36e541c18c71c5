"""The packaged models' tokenizers against transformers' reading of the same files; skipped where the files are not in the cache."""

import pytest
from tokenizers import pre_tokenizers

from models.text_corpus import CORPUS, mixed_texts
from octavo.models.cache_directory import cache_directory
from octavo.models.gguf_header import read_gguf_header
from octavo.models.gguf_tokenizer import build_gguf_tokenizer
from octavo.models.packaged_models import PACKAGED_MODELS


def cached_file(alias: str):
    path = cache_directory() / "models" / PACKAGED_MODELS[alias].file_name
    if not path.exists():
        pytest.skip(f"{alias} is not in the cache: octavo pull {alias}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("alias", PACKAGED_MODELS)
def test_ids_equal_those_of_transformers(alias):
    from transformers import AutoTokenizer

    path = cached_file(alias)
    oracle = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    if (
        alias == "smollm2-135m"
    ):  # its own tokenizer.json cuts digits off first, which transformers' reading of the header leaves out
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
        oracle.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    tokenizer = build_gguf_tokenizer(read_gguf_header(path).metadata)
    for text in CORPUS + mixed_texts(300, seed=9):
        for parse_special in (True, False):
            oracle.encode_special_tokens = not parse_special
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
            assert ids == oracle.encode(text, add_special_tokens=False).ids, repr(text)
            if "▁" not in text:  # sentencepiece cannot tell this character from a space
                assert tokenizer.decode(ids, skip_special_tokens=False) == text
