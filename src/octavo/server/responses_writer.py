"""Answers in the form of ``/v1/responses``, whole and as a stream.

Owns: the conversion of results. Must not know: requests, the engine.

Invariants:
1. The response at the end of a stream is the whole answer, and the stream's events build it.
"""

from typing import Any

from fastapi import Request
from starlette.types import Receive, Scope, Send

from octavo.outputs import OutputDelta, RequestOutput
from octavo.server.answer import Answer, PromptDelta
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError
from octavo.server.generation import EventStream
from octavo.server.messages_writer import named_event
from octavo.server.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputCall,
    OutputMessage,
    OutputText,
    ResponseFailure,
    ResponseObject,
    ResponsesUsage,
)
from octavo.server.tool_parser import Piece, ToolCallParser
from octavo.server.tools import Tools, call_id

INCOMPLETE_REASONS = {"length": "max_output_tokens", "abort": "time_limit"}


class ResponseStream(EventStream):
    """Sends an answer as the responses interface streams it."""

    last_event = b""

    def __init__(self, request: Request, context: ServerContext, answer: Answer, writer: "ResponsesWriter"):
        super().__init__(request, context, answer, writer)
        self._response = writer.response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._response.status == "in_progress":  # the client left
                self._response.status = "cancelled"

    def describe(self, error: ApiError) -> bytes:
        fail(self._response, error)
        return named_event({"type": "error", "code": error.code, "message": error.message, "param": error.param})


class ResponsesWriter:
    """Builds one response, which `response` is."""

    def __init__(self, response: ResponseObject, tools: Tools | None):
        self.response = response
        self._parser: ToolCallParser | None = None if tools is None else tools.parser()
        self._num_events = 0

    # ---- whole

    def whole(self, result: RequestOutput) -> ResponseObject:
        """Returns the response with its answer."""
        output = result.outputs[0]
        self._write(output.text, is_last=True)
        self.end([result])
        return self.response

    # ---- as a stream

    def start(self) -> bytes:
        """Returns the events that begin the response."""
        return self._event("response.created", {"response": self.response}) + self._event(
            "response.in_progress", {"response": self.response}
        )

    def write(self, deltas: list[PromptDelta]) -> bytes:
        """Returns the events of some deltas."""
        return b"".join(self._write_delta(item.delta) for item in deltas)

    def _write_delta(self, delta: OutputDelta) -> bytes:
        return self._write(delta.text, is_last=delta.finish_reason is not None)

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the events that end the response."""
        reason = results[0].outputs[0].finish_reason or ""
        is_complete = reason not in INCOMPLETE_REASONS
        events = self._close("completed" if is_complete else "incomplete")
        self.response.usage = _usage(results[0])
        self.response.status = "completed" if is_complete else "incomplete"
        if not is_complete:
            self.response.incomplete_details = IncompleteDetails(reason=INCOMPLETE_REASONS[reason])
        return events + self._event(f"response.{self.response.status}", {"response": self.response})

    # ---- items

    @property
    def _open_item(self) -> OutputMessage | OutputCall | None:
        last = self.response.output[-1] if self.response.output else None
        return last if last is not None and last.status == "in_progress" else None

    def _write(self, text: str, *, is_last: bool) -> bytes:
        if self._parser is None:
            pieces = [Piece(text)] if text else []
        else:
            pieces = self._parser.feed(text) + (self._parser.finish() if is_last else [])
        return b"".join(map(self._write_piece, pieces))

    def _write_piece(self, piece: Piece) -> bytes:
        if piece.content:
            return self._add_text(piece.content)
        if piece.name is not None and piece.call_index is not None:
            number = len(self.response.output)
            identity = call_id(self.response.id, piece.call_index)
            return self._open(OutputCall(id=f"fc_{identity}_{number}", call_id=identity, name=piece.name))
        item = self.response.output[-1]
        assert isinstance(item, OutputCall), "arguments came without a call"
        item.arguments += piece.arguments
        return self._item_event("function_call_arguments.delta", item, {"delta": piece.arguments})

    def _add_text(self, text: str) -> bytes:
        events = b""
        item = self._open_item
        if not isinstance(item, OutputMessage):
            item = OutputMessage(id=f"msg_{self.response.id}_{len(self.response.output)}")
            events = self._open(item)
            item.content = [OutputText()]
            events += self._item_event("content_part.added", item, {"content_index": 0, "part": item.content[0]})
        item.content[0].text += text
        return events + self._item_event("output_text.delta", item, {"content_index": 0, "delta": text, "logprobs": []})

    def _open(self, item: OutputMessage | OutputCall) -> bytes:
        events = self._close("completed")
        self.response.output.append(item)
        return events + self._event("response.output_item.added", {"output_index": len(self.response.output) - 1, "item": item})

    def _close(self, status: Any) -> bytes:
        item = self._open_item
        if item is None:
            return b""
        item.status = status
        if isinstance(item, OutputMessage):
            text = item.content[0]
            events = self._item_event("output_text.done", item, {"content_index": 0, "text": text.text, "logprobs": []})
            events += self._item_event("content_part.done", item, {"content_index": 0, "part": text})
        else:
            events = self._item_event("function_call_arguments.done", item, {"name": item.name, "arguments": item.arguments})
        return events + self._event("response.output_item.done", {"output_index": len(self.response.output) - 1, "item": item})

    def _item_event(self, kind: str, item: OutputMessage | OutputCall, fields: dict[str, Any]) -> bytes:
        place = {"item_id": item.id, "output_index": len(self.response.output) - 1}
        return self._event(f"response.{kind}", place | fields)

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._num_events += 1
        return named_event({"type": kind, "sequence_number": self._num_events - 1, **fields})


def fail(response: ResponseObject, error: ApiError) -> None:
    """Notes that there will be no answer: the client gave it up, or the server failed."""
    if response.status == "in_progress" and error.code == "aborted":
        response.status = "cancelled"
    elif response.status == "in_progress":
        response.status, response.error = "failed", ResponseFailure(code="server_error", message=error.message)


def _usage(result: RequestOutput) -> ResponsesUsage:
    num_input = len(result.prompt_token_ids)
    num_output = sum(len(output.token_ids) for output in result.outputs)
    details = InputTokensDetails(cached_tokens=result.num_prefix_hit_tokens)
    return ResponsesUsage(
        input_tokens=num_input, input_tokens_details=details, output_tokens=num_output, total_tokens=num_input + num_output
    )
