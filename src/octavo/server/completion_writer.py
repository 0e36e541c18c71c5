"""Answers in the form of ``/v1/completions``, whole and as a stream.

Owns: the conversion of results. Must not know: requests, the engine.

Invariants:
1. A choice's index is its prompt's number times n plus its own number.
2. The texts of a stream's chunks joined are the text of the whole answer; finish reasons and usage are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.models.tokenizer import Tokenizer
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.server.answer import PromptDelta
from octavo.server.generation import event, make_usage
from octavo.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from octavo.server.prompts import Prompt
from octavo.server.protocol.base import Usage
from octavo.server.protocol.completions import CompletionChoice, CompletionLogprobs, CompletionResponse


@dataclass(frozen=True)
class CompletionWriter:
    """Writes the answer to one request.

    Attributes:
        num_choices: choices to show for each prompt.
        echoes: texts begin with the prompt.
        is_echo_only: no token was asked for; the one that the engine had to make is not shown.
        num_top: alternatives to show per token; None: no log-probabilities.
        shows_prompt_logprobs: the prompt's log-probabilities are wanted as a field of their own.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    prompts: list[Prompt]
    num_choices: int
    echoes: bool = False
    is_echo_only: bool = False
    num_top: int | None = None
    skip_special_tokens: bool = True
    includes_usage: bool = False
    returns_token_ids: bool = False
    shows_prompt_logprobs: bool = False
    _logprobs_writers: dict[int, CompletionLogprobsWriter] = field(default_factory=dict)

    # ---- whole

    def whole(self, results: list[RequestOutput]) -> CompletionResponse:
        """Returns the response body."""
        choices = []
        for prompt_index, result in enumerate(results):
            for number, output in enumerate(result.outputs):
                choices.append(self._choice(prompt_index, number, output, result))
        return CompletionResponse(id=self.id, created=self.created, model=self.model, choices=choices, usage=self._usage(results))

    def _choice(self, prompt_index: int, number: int, output: CompletionOutput, result: RequestOutput) -> CompletionChoice:
        index = prompt_index * self.num_choices + number
        shown_ids = [] if self.is_echo_only else output.token_ids
        shown_text = "" if self.is_echo_only else output.text
        return CompletionChoice(
            index=index,
            text=(self.prompts[prompt_index].text if self.echoes else "") + shown_text,
            logprobs=self._whole_logprobs(index, prompt_index, shown_ids, output, result),
            finish_reason="length" if self.is_echo_only else output.finish_reason,
            stop_reason=None if self.is_echo_only else output.stop_reason,
            prompt_logprobs=prompt_logprobs(result.prompt_logprobs) if self.shows_prompt_logprobs else None,
            token_ids=shown_ids if self.returns_token_ids else None,
            prompt_token_ids=result.prompt_token_ids if self.returns_token_ids else None,
        )

    def _whole_logprobs(
        self, index: int, prompt_index: int, token_ids: list[int], output: CompletionOutput, result: RequestOutput
    ) -> CompletionLogprobs | None:
        if self.num_top is None:
            return None
        entries: list[dict[int, Logprob] | None] = list((output.logprobs or [])[: len(token_ids)])
        if self.echoes:
            token_ids = self.prompts[prompt_index].token_ids + token_ids
            entries = list(result.prompt_logprobs or []) + entries
        return self._describe(index, token_ids, entries)

    def _describe(
        self, index: int, token_ids: Sequence[int], entries: Sequence[dict[int, Logprob] | None]
    ) -> CompletionLogprobs | None:
        if self.num_top is None:
            return None
        if index not in self._logprobs_writers:
            self._logprobs_writers[index] = CompletionLogprobsWriter(
                self.tokenizer, self.num_top, skip_special_tokens=self.skip_special_tokens
            )
        return self._logprobs_writers[index].describe(token_ids, entries)

    def _usage(self, results: list[RequestOutput]) -> Usage:
        usage = make_usage(results)
        if self.is_echo_only:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    # ---- as a stream

    def start(self) -> bytes:
        """Returns the echoed prompts; those with log-probabilities wait until these are known."""
        if not self.echoes or self.num_top is not None:
            return b""
        indexed = enumerate(prompt for prompt in self.prompts for _ in range(self.num_choices))
        return b"".join(self._chunk([{"index": index, "text": prompt.text}]) for index, prompt in indexed)

    def write(self, deltas: list[PromptDelta]) -> bytes:
        """Returns the events of some deltas; one that adds nothing to see has none."""
        events = []
        for item in deltas:
            delta = item.delta
            if self.echoes and self.num_top is not None:
                events.append(self._echo_with_logprobs(item))
            if delta.text or delta.finish_reason or delta.logprobs or self.returns_token_ids:
                events.append(self._chunk([self._streamed_choice(item)]))
        return b"".join(events)

    def _echo_with_logprobs(self, item: PromptDelta) -> bytes:
        """Returns the echo of a prompt whose log-probabilities came with a choice's first token."""
        index = item.prompt_index * self.num_choices + item.delta.index
        if index in self._logprobs_writers:
            return b""
        prompt = self.prompts[item.prompt_index]
        entries = item.delta.prompt_logprobs or [None] * len(prompt.token_ids)
        logprobs = self._describe(index, prompt.token_ids, entries)
        return self._chunk([{"index": index, "text": prompt.text, "logprobs": logprobs}])

    def _streamed_choice(self, item: PromptDelta) -> dict[str, Any]:
        delta = item.delta
        index = item.prompt_index * self.num_choices + delta.index
        if self.is_echo_only:
            return {"index": index, "text": "", "logprobs": None, "finish_reason": "length", "stop_reason": None}
        choice = {
            "index": index,
            "text": delta.text,
            "logprobs": self._describe(index, delta.token_ids, delta.logprobs or []),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        return {**choice, "token_ids": delta.token_ids} if self.returns_token_ids else choice

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the event with the usage, if it was asked for."""
        return self._chunk([], self._usage(results)) if self.includes_usage else b""

    def _chunk(self, choices: list[dict[str, Any]], usage: object = None) -> bytes:
        chunk = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model, "choices": choices}
        if self.includes_usage:
            chunk["usage"] = usage
        return event(chunk)
