"""Log-probabilities in the forms of the interfaces.

Owns: the conversion. Must not know: where they come from.

Invariants:
1. Every number is finite, so that the JSON is JSON.
2. There are as many entries as tokens; of completions, the tokens' texts joined are the text before a stop string is cut.
"""

from collections.abc import Iterable, Sequence

from octavo.engine.detokenizer import Detokenizer
from octavo.models.tokenizer import Tokenizer
from octavo.outputs import Logprob
from octavo.server.protocol.chat import ChatLogprob, ChatLogprobs, ChatTokenLogprob
from octavo.server.protocol.completions import CompletionLogprobs, PromptLogprobs, TokenLogprob

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


def chat_logprobs(entries: Iterable[dict[int, Logprob]], num_top: int, tokenizer: Tokenizer) -> ChatLogprobs:
    """Returns the log-probabilities of some tokens of an answer.

    Args:
        num_top: alternatives to show per token.
    """

    def describe(token_id: int, logprob: Logprob) -> ChatLogprob:
        token_bytes = list(tokenizer.token_bytes(token_id))
        return ChatLogprob(token=logprob.decoded_token, logprob=_finite(logprob.logprob), bytes=token_bytes)

    content = []
    for entry in entries:
        chosen = describe(*next(iter(entry.items())))
        top = [describe(token_id, logprob) for token_id, logprob in _most_likely(entry, num_top)]
        content.append(ChatTokenLogprob(token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top_logprobs=top))
    return ChatLogprobs(content=content)


def prompt_logprobs(entries: Sequence[dict[int, Logprob] | None] | None) -> PromptLogprobs | None:
    """Returns the log-probabilities of a prompt."""
    if entries is None:
        return None
    return [
        entry
        and {
            token_id: TokenLogprob(logprob=_finite(item.logprob), rank=item.rank, decoded_token=item.decoded_token)
            for token_id, item in entry.items()
        }
        for entry in entries
    ]


class CompletionLogprobsWriter:
    """Describes the tokens of one choice, some at a time."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, skip_special_tokens: bool):
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._num_top = num_top
        self._offset = 0

    def describe(self, token_ids: Sequence[int], entries: Sequence[dict[int, Logprob] | None]) -> CompletionLogprobs:
        """Returns the entries of the next tokens."""
        described = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, entries, strict=True):
            text = self._detokenizer.append(token_id)
            described.tokens.append(text)
            described.token_logprobs.append(None if entry is None else _finite(entry[token_id].logprob))
            described.top_logprobs.append(None if entry is None else self._top(token_id, entry))
            described.text_offset.append(self._offset)
            self._offset += len(text)
        return described

    def _top(self, chosen_id: int, entry: dict[int, Logprob]) -> dict[str, float]:
        shown = [(chosen_id, entry[chosen_id]), *_most_likely(entry, self._num_top)]
        return {item.decoded_token: _finite(item.logprob) for _, item in shown}


def _most_likely(entry: dict[int, Logprob], num_top: int) -> list[tuple[int, Logprob]]:
    found = [(token_id, item) for token_id, item in entry.items() if item.rank <= num_top]
    return sorted(found, key=lambda pair: pair[1].rank)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
