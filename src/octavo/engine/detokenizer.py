"""Token ids to text, piece by piece.

Owns: the bytes of a character that is not complete yet. Must not know: stop strings, requests.

A token is a run of bytes; the text of an answer is the UTF-8 text of its tokens' bytes, as the continuation of its prompt (a
leading space stays).

Invariants:
1. The pieces joined equal the text of all tokens at once.
2. A piece never ends inside a character; bytes that can be no character become U+FFFD as soon as that is certain.
"""

import codecs
from collections.abc import Callable

from octavo.models.tokenizer import Tokenizer

_utf8_decoder: Callable[..., codecs.IncrementalDecoder] = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one choice's tokens; those that are ordinary text may be left out while no character is cut.

    Attributes:
        is_inside_character: the tokens so far end within a character.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _utf8_decoder(errors="replace")
        self.is_inside_character = False

    def append(self, token_id: int) -> str:
        """Takes the next token and returns the text that became certain; it may be empty."""
        if not self.is_inside_character and (text := self._tokenizer.ordinary_text(token_id)) is not None:
            return text  # most tokens, without the decoder's state
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self.is_inside_character = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Returns what is left of a character that was cut: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
