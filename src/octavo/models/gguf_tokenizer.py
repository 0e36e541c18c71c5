"""Builds a tokenizer from the vocabulary in a GGUF header.

Owns: what the header's tokenizer kinds and pre-tokenizer names mean in terms of the `tokenizers` library. Must not know: the
engine, or any other part of the header.

Two kinds are supported. ``gpt2`` is byte-level BPE with its merges listed. ``llama`` is sentencepiece BPE: no merges, a score per
piece, bytes for what no piece covers.

Invariants:
1. A token's id is its place in the header's list.
2. Text of control tokens is told apart from text of user-defined tokens: the latter always match, the former only on request.
"""

import contextlib
import itertools
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.cache_directory import cache_directory, write_atomically
from octavo.models.gguf_header import MetadataValue
from octavo.models.tokenizer import SPACE_MARK, Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer

PREFIX = "tokenizer.ggml."
MAX_PIECE_CHARS = 512  # deriving merges takes quadratic time in a piece's length; real vocabularies stay under 100
MERGES_VERSION = b"1"  # part of the cache key; raise it when `derive_merges` changes its result


class TokenType(IntEnum):
    """The format's numbers in ``token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# How text is cut before byte-level BPE, by the name that the header gives; the expressions are those the models were trained with.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "dbrx"), LLAMA3_SPLIT),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN2_SPLIT),
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O_SPLIT),
    "tekken": TEKKEN_SPLIT,
}
GPT2_NAMES = ("default", "gpt-2", "mpt", "olmo", "phi-2")
SINGLE_DIGITS_NAMES = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# Llama 3 looks a whole word up before merging, and writes a beginning-of-sequence token unless the header says otherwise.
WHOLE_WORD_NAMES = BEGIN_NAMES = ("llama3", "llama-v3", "llama-bpe")
COMPOSED_NAMES = ("qwen2",)  # trained on text in Unicode normal form C


def build_gguf_tokenizer(metadata: dict[str, MetadataValue]) -> Tokenizer:
    """Returns the tokenizer that a GGUF header describes.

    Raises:
        UnsupportedModelError: the kind or the pre-tokenizer's name is not known.
        CheckpointError: the vocabulary is missing or contradicts itself.
    """
    kind = metadata.get(PREFIX + "model")
    vocabulary = _Vocabulary(metadata)
    if kind == "gpt2":
        backend = _build_byte_level(vocabulary)
        adds_bos_by_default = str(vocabulary.get("pre")) in BEGIN_NAMES
    elif kind == "llama":
        backend = _build_sentencepiece(vocabulary)
        adds_bos_by_default = True
    else:
        raise UnsupportedModelError(f"tokenizer.ggml.model is {kind!r}; supported: 'gpt2', 'llama'")
    _add_whole_tokens(backend, vocabulary)
    _set_ends(backend, vocabulary, adds_bos_by_default=adds_bos_by_default)
    return Tokenizer(backend, bos_id=vocabulary.token_id("bos"), eos_id=vocabulary.token_id("eos"))


class _Vocabulary:
    """The header's token list with its parallel arrays, checked for equal lengths."""

    def __init__(self, metadata: dict[str, MetadataValue]):
        self._metadata = metadata
        self.tokens: list[str] = self.strings("tokens")
        self.types = self._numbers("token_type")

    def get(self, key: str, default: MetadataValue | None = None) -> MetadataValue | None:
        return self._metadata.get(PREFIX + key, default)

    def scores(self) -> np.ndarray:
        return self._numbers("scores")

    def token_id(self, role: str) -> int | None:
        """Returns the id that the header gives for a role such as ``bos``."""
        token_id = self.get(f"{role}_token_id")
        if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < len(self.tokens)):
            raise CheckpointError(f"{PREFIX}{role}_token_id is {token_id!r}; the vocabulary has {len(self.tokens)} tokens")
        return token_id

    def ids_of_type(self, token_type: TokenType) -> list[int]:
        return np.flatnonzero(self.types == token_type).tolist()

    def strings(self, key: str) -> list[str]:
        array = self.get(key)
        if not isinstance(array, list):
            raise CheckpointError(f"{PREFIX}{key} is missing or no array of strings")
        return array

    def _numbers(self, key: str) -> np.ndarray:
        array = self.get(key)
        if not isinstance(array, np.ndarray):
            raise CheckpointError(f"{PREFIX}{key} is missing or no array of numbers")
        if len(array) != len(self.tokens):
            raise CheckpointError(f"{PREFIX}{key} has {len(array)} entries for {len(self.tokens)} tokens")
        return array


def _build_byte_level(vocabulary: _Vocabulary) -> "Backend":
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    name = str(vocabulary.get("pre", "default"))
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.strings("merges")]
    try:
        backend = Backend(models.BPE(ids, merges, ignore_merges=name in WHOLE_WORD_NAMES))
    except Exception as cause:  # the library raises no narrower type for a merge that does not join two tokens into a third
        raise CheckpointError(f"{PREFIX}merges does not fit the tokens: {cause}") from cause
    if name in COMPOSED_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _byte_level_splitter(name)
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_level_splitter(name: str) -> "PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    if name in SPLITS:
        split = pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in SINGLE_DIGITS_NAMES:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name in GPT2_NAMES:
        return gpt2
    known = ", ".join((*GPT2_NAMES, *SINGLE_DIGITS_NAMES, *SPLITS))
    raise UnsupportedModelError(f"{PREFIX}pre is {name!r}; supported: {known}")


def _build_sentencepiece(vocabulary: _Vocabulary) -> "Backend":
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    # Pieces of spaces alone are stored as spaces in some files, although text reaches the pieces with its spaces marked.
    pieces = [SPACE_MARK * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    pairs = _cached_merges(pieces, vocabulary)
    left, right = ([pieces[token_id] for token_id in column] for column in pairs.T.tolist())
    merges = list(zip(left, right, strict=True))
    unknown_id = vocabulary.token_id("unknown")
    unknown = None if unknown_id is None else pieces[unknown_id]
    backend = Backend(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    mark_spaces = normalizers.Replace(" ", SPACE_MARK)
    if vocabulary.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark_spaces])
    else:
        backend.normalizer = mark_spaces
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _cached_merges(pieces: list[str], vocabulary: _Vocabulary) -> np.ndarray:
    """Returns `derive_merges` of the vocabulary, kept between runs because it takes seconds for 262,144 pieces."""
    import hashlib

    parts = "\0".join(pieces).encode(), vocabulary.scores().tobytes(), vocabulary.types.tobytes()
    digest = hashlib.sha256(b"\0".join((MERGES_VERSION, *parts))).hexdigest()
    path = cache_directory() / "merges" / f"{digest}.npy"
    merges = _load_merges(path, len(pieces))
    if merges is None:
        merges = derive_merges(pieces, _merge_ranks(pieces, vocabulary))
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
            write_atomically(path, lambda file: np.save(file, merges))
    return merges


def _load_merges(path: Path, num_pieces: int) -> np.ndarray | None:
    """Returns kept merges, or None when there are none or the file is damaged."""
    try:
        merges = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if merges.ndim != 2 or merges.shape[1] != 2 or merges.dtype != np.int32 or not ((merges >= 0) & (merges < num_pieces)).all():
        return None
    return merges


def _merge_ranks(pieces: list[str], vocabulary: _Vocabulary) -> dict[str, int]:
    """Returns the pieces that merging may produce, best first, each with its rank.

    Runs of spaces are user-defined tokens in some files, with scores that say nothing; they come first, in file order. Other
    user-defined tokens are cut out of the text before merging.
    """
    scores = vocabulary.scores()
    normal = vocabulary.ids_of_type(TokenType.NORMAL)
    runs = [i for i in vocabulary.ids_of_type(TokenType.USER_DEFINED) if not pieces[i].strip(SPACE_MARK)]
    order = runs + sorted(normal, key=lambda token_id: -scores[token_id])
    return {pieces[token_id]: rank for rank, token_id in enumerate(order)}


def derive_merges(pieces: Sequence[str], ranks: dict[str, int]) -> np.ndarray:
    """Returns the merges that a scored vocabulary implies, best first.

    Sentencepiece joins any two neighbours whose text is a piece. Of a piece's possible splits only one is ever joined: as long as
    no join crosses its borders, what happens between them is what happens to the piece alone. So each piece is merged alone, and
    its last join is its merge. Pieces with a character that is no piece by itself are never reached; trained vocabularies
    have none.

    Args:
        pieces: the vocabulary by id.
        ranks: the pieces that merging may produce; lower ranks are joined first.

    Returns:
        Ids of the left and the right part. Shape ``[num_merges, 2]``, int32.
    """
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    merges = []
    for piece in ranks:
        parts = _last_two_parts(piece, ranks)
        if len(parts) == 2 and parts[0] in ids and parts[1] in ids:
            merges.append((ids[parts[0]], ids[parts[1]]))
    return np.array(merges, np.int32).reshape(-1, 2)


def _last_two_parts(piece: str, ranks: dict[str, int]) -> list[str]:
    """Merges a piece's characters until two parts are left or nothing can be joined."""
    if len(piece) > MAX_PIECE_CHARS:
        raise CheckpointError(f"a vocabulary entry has {len(piece)} characters, at most {MAX_PIECE_CHARS} are allowed")
    parts, never = list(piece), len(ranks)
    while len(parts) > 2:
        joined_ranks = [ranks.get(left + right, never) for left, right in itertools.pairwise(parts)]
        best = min(joined_ranks)
        if best == never:
            break
        place = joined_ranks.index(best)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _add_whole_tokens(backend: "Backend", vocabulary: _Vocabulary) -> None:
    """Registers the tokens that are cut out of the text as they stand (invariant 2)."""
    from tokenizers import AddedToken

    tokens = vocabulary.tokens
    control = vocabulary.ids_of_type(TokenType.CONTROL) + vocabulary.ids_of_type(TokenType.UNKNOWN)
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in sorted(control)])
    whole = [i for i in vocabulary.ids_of_type(TokenType.USER_DEFINED) if tokens[i].strip(" ")]
    backend.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in whole])


def _set_ends(backend: "Backend", vocabulary: _Vocabulary, *, adds_bos_by_default: bool) -> None:
    """Makes the backend write the beginning- and end-of-sequence tokens that the header asks for."""
    from tokenizers import processors

    adds = {"bos": vocabulary.get("add_bos_token", adds_bos_by_default), "eos": vocabulary.get("add_eos_token", False)}
    ids = {
        role: vocabulary.token_id(role) for role, wanted in adds.items() if wanted is True and vocabulary.token_id(role) is not None
    }
    if not ids:
        return
    special = {role: (vocabulary.tokens[token_id], token_id) for role, token_id in ids.items()}
    before = [special["bos"][0]] if "bos" in special else []
    after = [special["eos"][0]] if "eos" in special else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=list(dict(special.values()).items())
    )
