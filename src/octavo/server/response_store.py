"""Responses that can be retrieved and continued.

Owns: the conversations behind them, within a bound on their number and size. Must not know: how responses are made.

Invariants:
1. A response is found only with the key that it was made with.
2. No more than `MAX_RESPONSES` responses and `MAX_CHARS` characters of input are kept; the oldest go first.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.server.errors import ApiError
from octavo.server.keys import ApiKey
from octavo.server.protocol.chat import ChatMessage
from octavo.server.protocol.responses import OutputCall, OutputMessage, ResponseObject
from octavo.server.protocol.tools import PastFunctionCall, PastToolCall

MAX_RESPONSES = 1000
MAX_CHARS = 64 * 2**20


@dataclass
class StoredResponse:
    """A response and what led to it.

    Attributes:
        key: whose it is.
        messages: the conversation that it answers.
        input_items: the input in the form in which it was sent.
        cancel: ends the work on it; None when there is none.
    """

    response: ResponseObject
    key: ApiKey
    messages: list[ChatMessage]
    input_items: list[dict[str, Any]]
    cancel: Callable[[], None] | None = None
    num_chars: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        messages = sum(len(message.model_dump_json()) for message in self.messages)
        self.num_chars = messages + len(str(self.input_items)) + len(self.response.model_dump_json())

    def conversation(self) -> list[ChatMessage]:
        """Returns the conversation up to and including the answer.

        Raises:
            ApiError: the response is not finished.
        """
        if self.response.status not in ("completed", "incomplete"):
            message = f"the response {self.response.id} is {self.response.status}; only a finished one can be continued"
            raise ApiError(400, message, param="previous_response_id")
        return [*self.messages, *map(_as_message, self.response.output)]


def _as_message(item: OutputMessage | OutputCall) -> ChatMessage:
    if isinstance(item, OutputMessage):
        return ChatMessage(role="assistant", content="".join(part.text for part in item.content))
    function = PastFunctionCall(name=item.name, arguments=item.arguments)
    return ChatMessage(role="assistant", tool_calls=[PastToolCall(id=item.call_id, function=function)])


class ResponseStore:
    """The responses of one server, until it ends."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_chars = 0

    def add(self, stored: StoredResponse) -> None:
        """Keeps a response; older ones go where the bound asks for it."""
        self.remove(stored.response.id)
        self._stored[stored.response.id] = stored
        self._num_chars += stored.num_chars
        while len(self._stored) > MAX_RESPONSES or (self._num_chars > MAX_CHARS and len(self._stored) > 1):
            self.remove(next(iter(self._stored)))

    def find(self, response_id: str, key: ApiKey, param: str) -> StoredResponse:
        """Returns a response.

        Raises:
            ApiError: there is none of that id, or it is someone else's.
        """
        stored = self._stored.get(response_id)
        if stored is None or stored.key is not key:
            raise ApiError(404, f"there is no response {response_id[:100]!r} (any more)", param=param)
        return stored

    def remove(self, response_id: str) -> None:
        """Forgets a response."""
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._num_chars -= stored.num_chars
