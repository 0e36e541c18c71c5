"""Answers in the form of ``/v1/chat/completions``, whole and as a stream.

Owns: the conversion of results. Must not know: requests, the engine.

Invariants:
1. The contents of a stream's chunks joined are the content of the whole answer; finish reasons and usage are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.models.tokenizer import Tokenizer
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.server.answer import PromptDelta
from octavo.server.generation import event, make_usage
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.protocol.chat import AssistantMessage, ChatChoice, ChatLogprobs, ChatResponse


@dataclass(frozen=True)
class ChatWriter:
    """Writes the answer to one request.

    Attributes:
        lead: text that every answer begins with: the message that is continued, where it is to be repeated.
        num_top: alternatives to show per token; None: no log-probabilities.
        num_choices: answers to the conversation.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    num_choices: int
    lead: str = ""
    num_top: int | None = None
    includes_usage: bool = False
    returns_token_ids: bool = False

    # ---- whole

    def whole(self, result: RequestOutput) -> ChatResponse:
        """Returns the response body."""
        return ChatResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(output) for output in result.outputs],
            usage=make_usage([result]),
            prompt_logprobs=prompt_logprobs(result.prompt_logprobs),
            prompt_token_ids=result.prompt_token_ids if self.returns_token_ids else None,
        )

    def _choice(self, output: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=output.index,
            message=AssistantMessage(content=self.lead + output.text),
            logprobs=self._logprobs(output.logprobs),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if self.returns_token_ids else None,
        )

    def _logprobs(self, entries: Sequence[dict[int, Logprob]] | None) -> ChatLogprobs | None:
        return None if self.num_top is None else chat_logprobs(entries or [], self.num_top, self.tokenizer)

    # ---- as a stream

    def start(self) -> bytes:
        """Returns the events that begin each message."""
        delta = {"role": "assistant", "content": self.lead}
        return b"".join(self._chunk([{"index": index, "delta": delta}]) for index in range(self.num_choices))

    def write(self, deltas: list[PromptDelta]) -> bytes:
        """Returns the events of some deltas; one that adds nothing to see has none."""
        events = []
        for item in deltas:
            delta = item.delta
            if not (delta.text or delta.finish_reason or delta.logprobs or self.returns_token_ids):
                continue
            choice: dict[str, Any] = {
                "index": delta.index,
                "delta": {"content": delta.text},
                "logprobs": self._logprobs(delta.logprobs),
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
            }
            if self.returns_token_ids:
                choice["token_ids"] = delta.token_ids
            events.append(self._chunk([choice]))
        return b"".join(events)

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the event with the usage, if it was asked for."""
        return self._chunk([], make_usage(results)) if self.includes_usage else b""

    def _chunk(self, choices: list[dict[str, Any]], usage: object = None) -> bytes:
        chunk = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model, "choices": choices}
        if self.includes_usage:
            chunk["usage"] = usage
        return event(chunk)
