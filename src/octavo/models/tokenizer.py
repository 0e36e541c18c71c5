"""Text to token ids and back.

Owns: the engine's view of a tokenizer, whatever file it came from. Must not know: where model files are found.

Invariants:
1. The text of a special token in a prompt is ordinary text unless the caller asks for `parse_special`, and inside a message of a
   conversation it is ordinary text always.
2. The text of a list of ids is the concatenation of `token_bytes` of each, read as UTF-8; so text can be made token by token.
3. No encoded prompt begins with two beginning-of-sequence tokens.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from octavo.errors import RequestError, UnsupportedModelError
from octavo.models.control_text import ControlText

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPACE_MARK = "\u2581"  # sentencepiece writes a space as this character
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[int, int]:
    """Returns the byte behind each character with which byte-level vocabularies spell bytes: printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + place: byte for place, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_level_alphabet()


class Tokenizer:
    """A tokenizer of the `tokenizers` library with the few operations that the engine needs; safe to use from many threads.

    Args:
        backend: the library's tokenizer; this object takes it over.
        bos_id: the beginning-of-sequence token, if the model has one.
        eos_id: the end-of-sequence token, if the model has one.

    Attributes:
        ordinary_text: returns what a token adds to the text if it is no control token and its bytes are whole characters, else
            None; the answers are remembered.
    """

    def __init__(self, backend: "Backend", *, bos_id: int | None, eos_id: int | None):
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._lock = threading.Lock()  # whether special text is parsed is a state of the backend
        self.bos_id = bos_id
        self.eos_id = eos_id
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added_bytes = {token_id: token.content.encode() for token_id, token in added.items()}
        self._piece_bytes = _piece_decoder(backend)
        self._known_bytes: dict[int, bytes] = {}  # of the tokens asked for so far
        self.ordinary_text = cache(self._read_ordinary_text)
        self.control_text = ControlText(backend, {token_id: added[token_id].content for token_id in self._special_ids})
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in (*added, -1)))

    @property
    def adds_bos(self) -> bool:
        """Whether a plain prompt gets a beginning-of-sequence token."""
        return self.bos_id is not None and self.encode("")[:1] == [self.bos_id]

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: any text, also an empty one.
            add_special_tokens: write the beginning- and end-of-sequence tokens that the model's tokenizer asks for.
            parse_special: turn the text of special tokens, as ``<|im_end|>``, into those tokens.

        Raises:
            RequestError: the text holds half a surrogate pair, which no encoding of Unicode allows.
        """
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise RequestError(f"the text has half a surrogate pair at character {cause.start}", field="prompt") from cause
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        twice = self.bos_id is not None and add_special_tokens and ids[:2] == [self.bos_id] * 2
        return ids[1:] if twice else ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Returns the token ids of a rendered chat template.

        The template writes its own special tokens. Where it leaves out the beginning-of-sequence token that the model's prompts
        begin with, that one is added. What `ControlText.hide` hid before the rendering stays ordinary text; any other text of a
        special token becomes that token.
        """
        if self.control_text.is_hidden_in(rendered):
            ids = self.control_text.encode(rendered)
        else:
            ids = self.encode(rendered, add_special_tokens=False, parse_special=True)
        if self.bos_id is None or not self.adds_bos or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of some ids; bytes that are no UTF-8 become U+FFFD."""
        kept = (token_id for token_id in ids if not (skip_special_tokens and token_id in self._special_ids))
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that a token adds to the text; empty for an id that the vocabulary leaves out."""
        known = self._known_bytes.get(token_id)
        if known is None:
            known = self._known_bytes[token_id] = self._read_bytes(token_id)
        return known

    def _read_bytes(self, token_id: int) -> bytes:
        if token_id in self._added_bytes:
            return self._added_bytes[token_id]
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._piece_bytes(piece)

    def token_text(self, token_id: int) -> str:
        """Returns `token_bytes` as text; a part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _read_ordinary_text(self, token_id: int) -> str | None:
        if token_id in self._special_ids:
            return None
        try:
            return self.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None

    def all_token_bytes(self) -> list[bytes]:
        """Returns `token_bytes` of every id; takes a fraction of a second for a large vocabulary."""
        return list(map(self.token_bytes, range(self.vocab_size)))

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token by the spelling that the vocabulary gives it."""
        return self._backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Returns whether a token is a control token, whose text users do not see."""
        return token_id in self._special_ids


def _piece_decoder(backend: "Backend") -> Callable[[str], bytes]:
    """Returns the function from a piece of the vocabulary to its bytes."""
    kinds = _decoder_kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder else {})
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise UnsupportedModelError(f"the tokenizer's decoder is {sorted(kinds)}; supported: byte-level and sentencepiece with bytes")


def _decoder_kinds(description: dict) -> set[str]:
    """Returns the types of a decoder and of the decoders inside it."""
    inner = (_decoder_kinds(part) for part in description.get("decoders", ()))
    return {description.get("type", "none")}.union(*inner)


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return piece.translate(BYTE_OF_CHARACTER).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()  # spelled outside the alphabet: the text itself


def _sentencepiece_bytes(piece: str) -> bytes:
    if match := BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode()
