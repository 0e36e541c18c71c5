"""Keeps what messages say apart from the control tokens that a chat template writes.

Owns: hiding the spelling of control tokens inside messages while a template is rendered, and the token ids of a text that holds
such spellings as ordinary text. Must not know: templates.

A message that spells ``<|im_end|>`` would otherwise end its own turn. Before rendering, a mark goes into every such spelling. What
is spelled without a mark afterwards is the template's: it gets a name that no client can know, and a second tokenizer over the
same vocabulary reads the text, to which the control tokens are known by these names. So the rest is split and merged as ever.

Invariants:
1. A text in which nothing is hidden is not touched.
2. Marks and names hold a random number of this process; token ids do not depend on it.
"""

import re
import secrets
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

BRACKET = "\ue000"  # a character for private use: no normalizer touches it


class ControlText:
    """The spellings of one tokenizer's control tokens.

    Args:
        backend: the tokenizer, copied when something is hidden for the first time.
        spellings: the control tokens' texts by id.
    """

    def __init__(self, backend: "Backend", spellings: Mapping[int, str]):
        nonce = secrets.token_hex(8)
        self._backend = backend
        self._mark = f"{BRACKET}{nonce}{BRACKET}"
        self._names = {text: f"{BRACKET}{nonce}-{token_id}{BRACKET}" for token_id, text in spellings.items() if text}
        self._lengths = sorted(set(map(len, self._names)), reverse=True)
        self._starts = re.compile("|".join(re.escape(start) for start in sorted({text[0] for text in self._names})))
        self._lock = Lock()
        self._renamed: RenamedTokenizer | None = None

    def hide(self, value: Any) -> Any:
        """Returns a JSON-like value with a mark inside every spelling of a control token, in all its texts and keys."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def is_hidden_in(self, text: str) -> bool:
        """Returns whether a text holds marks."""
        return self._mark in text

    def shown(self, text: str) -> str:
        """Returns a text without its marks."""
        return text.replace(self._mark, "")

    def encode(self, rendered: str) -> list[int]:
        """Returns the token ids of a rendered template in which something is hidden.

        Raises:
            RequestError: the text holds half a surrogate pair.
        """
        named = self.shown(self._name_tokens(rendered))
        try:
            named.encode()
        except UnicodeEncodeError as cause:
            raise RequestError("the messages have half a surrogate pair", field="messages") from cause
        return self._renamed_tokenizer().encode(named)

    def _hide_text(self, text: str) -> str:
        start = 0
        while (found := self._find(text, start)) is not None:
            start = found[0] + 1  # what overlapped this spelling is found next
            text = text[:start] + self._mark + text[start:]
            start += len(self._mark)
        return text

    def _name_tokens(self, text: str) -> str:
        """Returns a text with the spellings in it replaced by names."""
        pieces, end = [], 0
        while (found := self._find(text, end)) is not None:
            start, spelling = found
            pieces += [text[end:start], self._names[spelling]]
            end = start + len(spelling)
        return "".join([*pieces, text[end:]])

    def _find(self, text: str, start: int) -> tuple[int, str] | None:
        """Returns where the first spelling from ``start`` on is, and the longest one there."""
        if not self._names:
            return None
        for candidate in self._starts.finditer(text, start):
            for length in self._lengths:
                spelling = text[candidate.start() : candidate.start() + length]
                if spelling in self._names:
                    return candidate.start(), spelling
        return None

    def _renamed_tokenizer(self) -> "RenamedTokenizer":
        with self._lock:
            if self._renamed is None:
                self._renamed = RenamedTokenizer(self._backend, self._names)
            return self._renamed


class RenamedTokenizer:
    """A second tokenizer over the same vocabulary, to which some added tokens are known by other names."""

    def __init__(self, backend: "Backend", names: Mapping[str, str]):
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend

        self._backend = Backend(backend.model)
        if backend.normalizer is not None:
            self._backend.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._backend.pre_tokenizer = backend.pre_tokenizer
        added = backend.get_added_tokens_decoder()
        renamed = {token_id: names.get(token.content, token.content) for token_id, token in added.items()}
        self._backend.add_tokens(
            [
                AddedToken(
                    renamed[token_id],
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                    special=False,
                )
                for token_id, token in added.items()
            ]
        )
        self._original_ids = {self._backend.token_to_id(renamed[token_id]): token_id for token_id in added}

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, as the original tokenizer numbers them."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return [self._original_ids.get(token_id, token_id) for token_id in ids]
