"""Answers in the form of ``/v1/chat/completions``, whole and as a stream.

Owns: the conversion of results. Must not know: requests, the engine.

Invariants:
1. The contents of a stream's chunks joined are the content of the whole answer; finish reasons and usage are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.models.tokenizer import Tokenizer
from octavo.outputs import CompletionOutput, Logprob, OutputDelta, RequestOutput
from octavo.server.answer import PromptDelta
from octavo.server.generation import event, make_usage
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.protocol.chat import AssistantMessage, ChatChoice, ChatLogprobs, ChatResponse
from octavo.server.tool_parser import ToolCallParser
from octavo.server.tools import Tools, call_deltas, join_calls


@dataclass(frozen=True)
class ChatWriter:
    """Writes the answer to one request.

    Attributes:
        lead: text that every answer begins with: the message that is continued, where it is to be repeated.
        num_top: alternatives to show per token; None: no log-probabilities.
        num_choices: answers to the conversation.
        tools: what the model may call; None: its text is taken as it is.
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
    tools: Tools | None = None
    _parsers: dict[int, ToolCallParser] = field(default_factory=dict)

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
        message, finish_reason = self._message(output)
        return ChatChoice(
            index=output.index,
            message=message,
            logprobs=self._logprobs(output.logprobs),
            finish_reason=finish_reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if self.returns_token_ids else None,
        )

    def _message(self, output: CompletionOutput) -> tuple[AssistantMessage, str | None]:
        if self.tools is None:
            return AssistantMessage(content=self.lead + output.text), output.finish_reason
        parser = self.tools.parser()
        pieces = [*parser.feed(output.text), *parser.finish()]
        content = self.lead + "".join(piece.content for piece in pieces)
        calls = join_calls(pieces, f"{self.id}/{output.index}")
        return AssistantMessage(content=content or None, tool_calls=calls or None), _reason(output.finish_reason, parser)

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
            content, finish_reason = self._delta(delta)
            choice: dict[str, Any] = {
                "index": delta.index,
                "delta": content,
                "logprobs": self._logprobs(delta.logprobs),
                "finish_reason": finish_reason,
                "stop_reason": delta.stop_reason,
            }
            if self.returns_token_ids:
                choice["token_ids"] = delta.token_ids
            events.append(self._chunk([choice]))
        return b"".join(events)

    def _delta(self, delta: OutputDelta) -> tuple[dict[str, Any], str | None]:
        if self.tools is None:
            return {"content": delta.text}, delta.finish_reason
        parser = self._parsers.setdefault(delta.index, self.tools.parser())
        pieces = parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += parser.finish()
        calls = call_deltas(pieces, f"{self.id}/{delta.index}")
        body: dict[str, Any] = {"content": "".join(piece.content for piece in pieces)}
        if calls:
            body["tool_calls"] = calls
        return body, _reason(delta.finish_reason, parser)

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the event with the usage, if it was asked for."""
        return self._chunk([], make_usage(results)) if self.includes_usage else b""

    def _chunk(self, choices: list[dict[str, Any]], usage: object = None) -> bytes:
        chunk = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model, "choices": choices}
        if self.includes_usage:
            chunk["usage"] = usage
        return event(chunk)


def _reason(finish_reason: str | None, parser: ToolCallParser) -> str | None:
    return "tool_calls" if finish_reason == "stop" and parser.num_calls else finish_reason
