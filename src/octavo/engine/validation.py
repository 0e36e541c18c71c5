"""What a request may ask of this model in this engine.

Owns: the checks at the door that need the model, its tokenizer or the pool. Must not know: requests in flight.

Invariants:
1. Whatever passes can be served to its end; whatever does not is refused with the field, the value and what is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.engine.beam_search import BeamSearch, greedy_params
from octavo.engine.grammar import CompiledGrammar
from octavo.engine.request import PromptInput
from octavo.errors import RequestError
from octavo.models.tokenizer import Tokenizer
from octavo.runner.sampling_request import SamplingRequest, bitmask_of
from octavo.sampling_params import BeamSearchParams, DefaultCount, SamplingParams
from octavo.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class RequestChecker:
    """Checks requests against one model.

    Attributes:
        vocab_size: rows of the embedding; token ids below it are accepted.
        max_model_len: most tokens of one sequence, prompt and answer.
        end_token_ids: tokens that end an answer by themselves.
    """

    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    end_token_ids: frozenset[int]

    def prompt(self, prompt: str | Sequence[int], *, is_rendered: bool) -> PromptInput:
        """Returns the prompt's token ids.

        Raises:
            RequestError: it is empty, not text, or has a token id that the model lacks.
        """
        text: str | None = None
        ids: object = prompt
        if isinstance(prompt, str):
            ids = self.tokenizer.encode_chat(prompt) if is_rendered else self.tokenizer.encode(prompt)
            text = self.tokenizer.control_text.shown(prompt) if is_rendered else prompt
        token_ids = self._checked_ids(ids)  # a text's too: its tokenizer may know tokens that the model lacks
        if not token_ids:
            raise RequestError("prompt has no tokens", field="prompt", hint="give at least one token to continue from")
        return PromptInput(text, token_ids)

    def _checked_ids(self, prompt: object) -> list[int]:
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise RequestError(f"prompt is a {type(prompt).__name__}; it takes a text or a list of token ids", field="prompt")
        for token in prompt:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise RequestError(f"prompt has {token!r}; token ids are 0 to {self.vocab_size - 1}", field="prompt")
        return list(prompt)

    def max_total_tokens(self, prompt: PromptInput, params: SamplingParams, scheduler: Scheduler, *, num_choices: int) -> int:
        """Returns the most tokens that the sequence may have, prompt included.

        Args:
            num_choices: sequences that must be able to run at once.

        Raises:
            RequestError: prompt and answer are longer than the model's limit, or a field names a token that does not exist.
            CapacityError: they can never fit the KV pool.
        """
        params.check_vocabulary(self.vocab_size)
        self._check_choosable(params)
        num_prompt = len(prompt.token_ids)
        limit = None if isinstance(params.max_tokens, DefaultCount) else params.max_tokens
        wanted = limit or max(params.min_tokens, 1)
        if num_prompt + wanted > self.max_model_len:
            raise RequestError(
                f"the prompt's {num_prompt} tokens and max_tokens={wanted} are together more than "
                f"max_model_len={self.max_model_len}",
                field="prompt" if num_prompt >= self.max_model_len else "max_tokens",
                hint="shorten the prompt, lower max_tokens, or start with a larger max_model_len",
            )
        total = num_prompt + wanted
        if limit is None:
            fits = scheduler.kv.max_tokens_alone(scheduler.limits.max_num_batched_tokens)
            total = max(total, min(self.max_model_len, fits, num_prompt + (params.max_tokens or self.max_model_len)))
        scheduler.check_capacity(num_prompt, total, num_choices)
        return total

    def sampling(self, prompt: PromptInput, params: SamplingParams, seed: int, grammar: CompiledGrammar | None) -> SamplingRequest:
        """Returns the sampling side of a request's first choice.

        Raises:
            RequestError: two fields contradict each other, or a bad word has no tokens.
        """
        allowed = params.allowed_token_ids
        if grammar is not None and params.ignore_eos:
            raise RequestError("ignore_eos is not allowed with a grammar, which says where the answer ends", field="ignore_eos")
        return SamplingRequest(
            params=params,
            seed=seed,
            choice_index=0,
            num_prompt_tokens=len(prompt.token_ids),
            end_token_ids=frozenset() if params.ignore_eos else self.end_token_ids,
            bad_words=self.bad_words(params),
            token_bitmask=None if allowed is None else bitmask_of(allowed, self.vocab_size),
            constraint=None if grammar is None else grammar.constraint(),
        )

    def beam_search(self, prompt: PromptInput, params: BeamSearchParams, scheduler: Scheduler) -> BeamSearch:
        """Returns the search that a prompt is to have.

        Raises:
            RequestError, CapacityError: as `max_total_tokens`; or a beam would need more different next tokens than there are.
        """
        max_tokens = self.max_total_tokens(prompt, greedy_params(params), scheduler, num_choices=1)
        end_token_ids = frozenset() if params.ignore_eos else self.end_token_ids
        search = BeamSearch(params, end_token_ids, max_tokens - len(prompt.token_ids))
        if search.num_candidates > self.vocab_size:
            raise RequestError(
                f"num_beams={params.num_beams} needs the {search.num_candidates} most likely tokens; "
                f"the vocabulary has {self.vocab_size}",
                field="num_beams",
            )
        return search

    def check_embeddable(self, prompt: PromptInput, scheduler: Scheduler) -> None:
        """Refuses a prompt that cannot be computed, alone and without an answer.

        Raises:
            RequestError: it is longer than the model's limit.
            CapacityError: it can never fit the KV pool.
        """
        num_prompt = len(prompt.token_ids)
        if num_prompt > self.max_model_len:
            raise RequestError(
                f"the prompt's {num_prompt} tokens are more than max_model_len={self.max_model_len}",
                field="prompt",
                hint="shorten the prompt, or start with a larger max_model_len",
            )
        scheduler.check_capacity(num_prompt, num_prompt)

    def bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Returns the token runs of the request's bad words, each as it stands and after a space, that the model can write.

        Raises:
            RequestError: one of them has no tokens.
        """
        runs: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for text in (word, " " + word.lstrip()):
                run = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                if not run:
                    raise RequestError(f"bad_words has {word!r}, which has no tokens", field="bad_words")
                if max(run) < self.vocab_size:  # the model can write it
                    runs[run] = None
        return tuple(runs)

    def _check_choosable(self, params: SamplingParams) -> None:
        """Refuses a request whose first token would have nothing to choose from."""
        if params.allowed_token_ids is None:
            return
        banned = {run[0] for run in self.bad_words(params) if len(run) == 1}
        if params.min_tokens:
            banned |= set(params.stop_token_ids) | (set() if params.ignore_eos else self.end_token_ids)
        if set(params.allowed_token_ids) <= banned:
            raise RequestError(
                f"allowed_token_ids={list(params.allowed_token_ids)} are all banned by bad_words or min_tokens",
                field="allowed_token_ids",
            )


def check_order_and_salt(priority: int, cache_salt: str | None) -> None:
    """Raises `RequestError` for a priority or a salt of a type that cannot be ordered or compared."""
    if type(priority) is not int:
        raise RequestError(f"priority={priority!r} is not a whole number", field="priority")
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise RequestError(f"cache_salt={cache_salt!r} is not a text", field="cache_salt")
