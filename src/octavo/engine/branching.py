"""Where another answer can branch off from one that is being made or was made lately.

Owns: the token ids of requests that left, and the reading of a place in them. Must not know: KV memory; a branch finds what is
still cached of its tokens as any prompt does.

Invariants:
1. At most `NUM_KEPT` requests and `MAX_KEPT_TOKENS` tokens are kept, the youngest ones.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace

from octavo.engine.request import Request
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams

NUM_KEPT = 256
MAX_KEPT_TOKENS = 2**20  # four bytes each


@dataclass(frozen=True)
class BranchPoint:
    """What a branch goes on from.

    Attributes:
        params: the request's, without its seed: a branch draws anew.
        cache_salt: the request's; a branch shares KV with whom it did.
    """

    token_ids: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str | None


@dataclass(frozen=True)
class PastRequest:
    """A request that left.

    Attributes:
        answers: the token ids of its choices, in their order.
    """

    prompt: array
    answers: list[array]
    params: SamplingParams
    priority: int
    cache_salt: str | None

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answers."""
        return len(self.prompt) + sum(map(len, self.answers))


def past_request(request: Request) -> PastRequest:
    """Returns what can be branched off from a request, as it is now."""
    answers = [array("i", choice.result().token_ids) for choice in request.choices]
    return PastRequest(array("i", request.prompt.token_ids), answers, request.params, request.priority, request.cache_salt)


def branch_point(past: PastRequest, end_token_ids: frozenset[int], *, choice: int = 0, at_token: int | None = None) -> BranchPoint:
    """Returns a place in one of a request's answers.

    Args:
        end_token_ids: of these, one at the end is left out where the place is not given.
        at_token: how many tokens are kept, the prompt's included; all if not given.

    Raises:
        RequestError: there is no such choice or token.
    """
    if type(choice) is not int or not 0 <= choice < len(past.answers):
        raise RequestError(f"choice={choice!r} is none of the request's choices 0 to {len(past.answers) - 1}", field="choice")
    token_ids = [*past.prompt, *past.answers[choice]]
    if at_token is None:
        ends = len(past.answers[choice]) > 0 and token_ids[-1] in end_token_ids
        at_token = len(token_ids) - ends
    if type(at_token) is not int or not 1 <= at_token <= len(token_ids):
        raise RequestError(f"at_token={at_token!r} is none of the answer's tokens 1 to {len(token_ids)}", field="at_token")
    params = replace(past.params, n=1, best_of=None, seed=None)
    return BranchPoint(token_ids[:at_token], params, past.priority, past.cache_salt)


class PastRequests:
    """The requests that left last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, PastRequest] = OrderedDict()
        self._num_tokens = 0

    def add(self, request: Request) -> None:
        """Keeps a request that leaves; older ones go where there are too many."""
        self._remove(request.request_id)
        past = past_request(request)
        self._kept[request.request_id] = past
        self._num_tokens += past.num_tokens
        while len(self._kept) > NUM_KEPT or self._num_tokens > MAX_KEPT_TOKENS:
            self._remove(next(iter(self._kept)))

    def find(self, request_id: str) -> PastRequest | None:
        """Returns a request that left lately."""
        return self._kept.get(request_id)

    def _remove(self, request_id: str) -> None:
        past = self._kept.pop(request_id, None)
        if past is not None:
            self._num_tokens -= past.num_tokens
