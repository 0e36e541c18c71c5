"""The model as clients see it.

Owns: its name, its sizes, and the way from texts and messages to token ids. Must not know: HTTP, the engine.

Invariants:
1. The HTTP loop tokenises short texts itself and never waits for a long one: those are read on another thread, one after the
   other, and while that thread has the tokenizer all texts queue behind it.
2. A text that must have more tokens than the model takes, whatever they are, is refused unread.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.models.conversation import render_conversation
from octavo.sampling_params import SamplingParams
from octavo.server.errors import MAX_QUOTED_CHARS, ApiError
from octavo.server.protocol.chat import ChatPrompt

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.models.chat_template import ChatTemplate
    from octavo.models.tokenizer import Tokenizer

# Up to this length the work takes less time than handing it to another thread and back, about 0.1 ms.
MAX_INLINE_CHARS = 2000


@dataclass(frozen=True)
class ServedModel:
    """One model.

    Attributes:
        vocab_size: token ids below it are accepted.
        hidden_size: numbers of an embedding.
        max_model_len: most tokens of one sequence, prompt and answer.
        default_params: what a request gets that leaves sampling open.
        created: when the server loaded it, in seconds since 1970.
    """

    name: str
    vocab_size: int
    hidden_size: int
    max_model_len: int
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    default_params: SamplingParams
    created: int = field(default_factory=lambda: int(time.time()))
    _reader: "TextReader" = field(default_factory=lambda: TextReader(), repr=False)

    def check_name(self, name: str | None) -> None:
        """Refuses a request for another model.

        Raises:
            ApiError: the name is not this model's.
        """
        if name is not None and name != self.name:
            message = f"there is no model {name[:MAX_QUOTED_CHARS]!r}; the model served here is {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def encode(self, text: str, *, name: str = "prompt", add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of the text in the field of that name.

        Raises:
            RequestError: it is too long, or holds half a surrogate pair.
        """
        return await self._run(len(text), partial(self._encode, text, name, add_special_tokens))

    def _encode(self, text: str, name: str, add_special_tokens: bool) -> list[int]:
        self._check_length(text, name)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def encode_chat(self, prompt: ChatPrompt) -> tuple[str, list[int]]:
        """Returns what the chat template makes of messages, and its token ids.

        Raises:
            RequestError: the model has no chat template, or its template refuses the messages.
        """
        if self.chat_template is None:
            raise RequestError(
                f"the model {self.name} has no chat template",
                field="messages",
                hint="use /v1/completions, or start the server with chat_template",
            )
        num_chars = sum(len(message.get("content") or "") for message in prompt.messages) + len(str(prompt.tools))
        return await self._run(num_chars, partial(self._encode_chat, self.chat_template, prompt))

    def _encode_chat(self, template: "ChatTemplate", prompt: ChatPrompt) -> tuple[str, list[int]]:
        text = render_conversation(
            template,
            self.tokenizer.control_text,
            prompt.messages,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            tools=prompt.tools or None,
            arguments=prompt.arguments,
        )
        self._check_length(text, "messages")
        return self.tokenizer.control_text.shown(text), self.tokenizer.encode_chat(text)

    def _check_length(self, text: str, field_name: str) -> None:
        """Refuses what is too long even if every token were the vocabulary's longest."""
        if len(text) <= self.max_model_len:
            return
        least_tokens = len(text.encode("utf-8", "replace")) // self._reader.longest_token_bytes(self.tokenizer)
        if least_tokens > self.max_model_len:
            raise RequestError(
                f"{field_name} has at least {least_tokens} tokens; max_model_len={self.max_model_len} allows no more",
                field=field_name,
            )

    async def _run(self, num_chars: int, work: Callable[[], Any]) -> Any:
        if num_chars <= MAX_INLINE_CHARS and self._reader.is_idle:
            return work()
        return await self._reader.run(work)


class TextReader:
    """The thread that tokenises long texts."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "octavo-tokenizer")
        self._num_waiting = 0
        self._longest_token_bytes = 0

    @property
    def is_idle(self) -> bool:
        """True when the thread does not have the tokenizer."""
        return self._num_waiting == 0

    async def run(self, work: Callable[[], Any]) -> Any:
        """Does some work on the thread."""
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        finally:
            self._num_waiting -= 1

    def longest_token_bytes(self, tokenizer: "Tokenizer") -> int:
        """Returns the length of the vocabulary's longest token; found out once, when a long text comes."""
        if not self._longest_token_bytes:
            self._longest_token_bytes = max(map(len, tokenizer.all_token_bytes()))
        return self._longest_token_bytes


def describe_model(engine: "Engine", name: str | None) -> ServedModel:
    """Returns an engine's model.

    Args:
        name: how clients call it; the model's own name if not given.
    """
    params = replace(engine.default_params, max_tokens=None)
    return ServedModel(
        name=name or engine.model_name,
        vocab_size=engine.vocab_size,
        hidden_size=engine.hidden_size,
        max_model_len=engine.max_model_len,
        tokenizer=engine.tokenizer,
        chat_template=engine.chat_template,
        default_params=params,
    )
