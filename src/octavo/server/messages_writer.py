"""Answers in the form of ``/v1/messages``, whole and as a stream.

Owns: the conversion of results. Must not know: requests, the engine.

Invariants:
1. The blocks that a stream's events build are those of the whole answer; so are stop reason and usage.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from octavo.outputs import OutputDelta, RequestOutput
from octavo.server.answer import PromptDelta
from octavo.server.errors import ApiError
from octavo.server.generation import EventStream, event
from octavo.server.protocol.messages import AnswerTextBlock, AnswerToolUseBlock, MessagesResponse, MessagesUsage
from octavo.server.tool_parser import Piece, ToolCallParser
from octavo.server.tools import Tools, call_id, join_calls

STOP_REASONS = {"length": "max_tokens", "abort": "pause_turn"}


def named_event(body: dict[str, Any]) -> bytes:
    """Returns a server-sent event that is named by its type."""
    return f"event: {body['type']}\n".encode() + event(body)


class MessageStream(EventStream):
    """Sends an answer as Anthropic's clients read it."""

    last_event = b""

    def describe(self, error: ApiError) -> bytes:
        return named_event(error.anthropic_body())


@dataclass
class MessagesWriter:
    """Writes the answer to one request.

    Attributes:
        num_prompt_tokens: of the request.
        tools: what the model may call; None: its text is taken as it is.
    """

    id: str
    model: str
    num_prompt_tokens: int
    tools: Tools | None = None
    _parser: ToolCallParser | None = field(init=False)
    _index: int = -1  # of the block that is open, or was last
    _kind: str = ""  # of the block that is open

    def __post_init__(self) -> None:
        self._parser = None if self.tools is None else self.tools.parser()

    # ---- whole

    def whole(self, result: RequestOutput) -> MessagesResponse:
        """Returns the response body."""
        output = result.outputs[0]
        pieces = self._pieces(output.text, is_last=True)
        text = "".join(piece.content for piece in pieces)
        blocks: list[AnswerTextBlock | AnswerToolUseBlock] = [AnswerTextBlock(text=text)] if text else []
        for call in join_calls(pieces, self.id):
            blocks.append(AnswerToolUseBlock(id=call.id, name=call.function.name, input=_read_object(call.function.arguments)))
        return MessagesResponse(
            id=self.id,
            model=self.model,
            content=blocks,
            usage=_usage(result),
            **self._stop(output.finish_reason, output.stop_reason),
        )

    def _pieces(self, text: str, *, is_last: bool) -> list[Piece]:
        if self._parser is None:
            return [Piece(text)] if text else []
        pieces = self._parser.feed(text)
        return pieces + self._parser.finish() if is_last else pieces

    def _stop(self, finish_reason: str | None, stop_reason: str | int | None) -> dict[str, str | None]:
        if finish_reason != "stop":
            return {"stop_reason": STOP_REASONS.get(finish_reason or ""), "stop_sequence": None}
        if self._parser is not None and self._parser.num_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        sequence = stop_reason if isinstance(stop_reason, str) else None
        return {"stop_reason": "end_turn" if sequence is None else "stop_sequence", "stop_sequence": sequence}

    # ---- as a stream

    def start(self) -> bytes:
        """Returns the event that begins the message."""
        usage = MessagesUsage(input_tokens=self.num_prompt_tokens, output_tokens=0)
        message = MessagesResponse(id=self.id, model=self.model, content=[], stop_reason=None, stop_sequence=None, usage=usage)
        return named_event({"type": "message_start", "message": message})

    def write(self, deltas: list[PromptDelta]) -> bytes:
        """Returns the events of some deltas."""
        return b"".join(self._write(item.delta) for item in deltas)

    def _write(self, delta: OutputDelta) -> bytes:
        pieces = self._pieces(delta.text, is_last=delta.finish_reason is not None)
        return b"".join(map(self._write_piece, pieces))

    def _write_piece(self, piece: Piece) -> bytes:
        if piece.content:
            opening = b"" if self._kind == "text" else self._open({"type": "text", "text": ""})
            return opening + self._add({"type": "text_delta", "text": piece.content})
        if piece.name is not None and piece.call_index is not None:
            return self._open({"type": "tool_use", "id": call_id(self.id, piece.call_index), "name": piece.name, "input": {}})
        return self._add({"type": "input_json_delta", "partial_json": piece.arguments})

    def _open(self, block: dict[str, Any]) -> bytes:
        closing = self._close()
        self._index += 1
        self._kind = block["type"]
        return closing + named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _add(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return named_event({"type": "content_block_stop", "index": self._index})

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the events that end the message."""
        output = results[0].outputs[0]
        delta = self._stop(output.finish_reason, output.stop_reason)
        body = {"type": "message_delta", "delta": delta, "usage": _usage(results[0])}
        return self._close() + named_event(body) + named_event({"type": "message_stop"})


def _usage(result: RequestOutput) -> MessagesUsage:
    num_cached = result.num_prefix_hit_tokens
    return MessagesUsage(
        input_tokens=len(result.prompt_token_ids) - num_cached,
        output_tokens=sum(len(output.token_ids) for output in result.outputs),
        cache_read_input_tokens=num_cached,
    )


def _read_object(text: str) -> dict[str, Any]:
    """Returns a call's arguments; what a cut-off or careless answer left unreadable is given as text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"unreadable": text}
