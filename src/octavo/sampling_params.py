"""How a request wants its tokens chosen and its text cut, or its answers searched.

Owns: the fields' names (vLLM's), defaults, allowed ranges. Must not know: models, except for the vocabulary's size that
`SamplingParams.check_vocabulary` is given.

Invariants:
1. A `SamplingParams` that exists is valid but for its token ids, which `check_vocabulary` checks; a `BeamSearchParams` is valid.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from octavo.errors import RequestError

MAX_LOGPROBS = 64
MAX_CHOICES = 128
MAX_BEAMS = 64
MAX_LENGTH_PENALTY = 10  # every possible length to this power is a float
MAX_STOP_STRINGS = 64
MAX_BIAS = 1e30  # finite after any sum of biases and penalties
LOWEST_TEMPERATURE = 1e-5  # below it a soft-max over float32 logits has one survivor: the request is greedy

# field -> (lowest, highest, lowest itself allowed)
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, math.inf, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
    "repetition_penalty": (0.0, math.inf, False),
}
# field -> (lowest, highest, None allowed)
_WHOLE: dict[str, tuple[int, int, bool]] = {
    "n": (1, MAX_CHOICES, False),
    "best_of": (1, MAX_CHOICES, True),
    "top_k": (-1, 2**31 - 1, False),
    "seed": (0, 2**64 - 1, True),
    "max_tokens": (1, 2**31 - 1, True),
    "min_tokens": (0, 2**31 - 1, False),
    "logprobs": (0, MAX_LOGPROBS, True),
    "prompt_logprobs": (0, MAX_LOGPROBS, True),
}


class DefaultCount(int):
    """A number that nobody asked for: it gives way where a request must be shorter."""


DEFAULT_MAX_TOKENS = DefaultCount(16)


def _reject(name: str, value: Any, allowed: str) -> RequestError:
    return RequestError(f"{name}={value!r} is not allowed: it must be {allowed}", field=name)


def _check_whole(name: str, value: Any, lowest: int, highest: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise _reject(name, value, f"a whole number from {lowest} to {highest}")


def _check_flags(params: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(params, name), bool):
            raise _reject(name, getattr(params, name), "true or false")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The sampling fields of one request.

    Order in which the raw logits become a choice: penalties, then `logit_bias`, then masks (`allowed_token_ids`, `bad_words`,
    end tokens while below `min_tokens`), temperature, `top_k`, soft-max, `min_p`, `top_p`, draw.

    Attributes:
        n: number of choices returned for the prompt.
        best_of: number of choices generated; those whose tokens are most likely on average are returned. `n` if not given.
        temperature: 0 (or below 1e-5) takes the most likely token, ties to the lowest id.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum.
        top_k: keep this many most likely tokens; 0 or −1 keeps all.
        min_p: drop tokens less likely than this share of the most likely one.
        presence_penalty: subtracted from the logit of every token that the answer already has.
        frequency_penalty: subtracted once for each time the answer already has the token.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or answer.
        seed: makes the draw repeatable; a fresh one is taken and reported when not given.
        stop: strings that end the answer; cut from the text unless `include_stop_str_in_output`.
        stop_token_ids: tokens that end the answer, even with `ignore_eos`.
        include_stop_str_in_output: keep the stop string that ended the answer in its text.
        ignore_eos: the model's end tokens do not end the answer.
        max_tokens: most tokens of the answer; None: as many as the model length leaves. The default is shortened to that, too.
        min_tokens: end tokens, stop tokens and stop strings do not end the answer before this many tokens.
        logprobs: also report the chosen token's log-probability and this many of the most likely, of the raw distribution.
        prompt_logprobs: the same for the prompt's tokens.
        logit_bias: added to the logits of these token ids.
        allowed_token_ids: only these token ids can be chosen.
        bad_words: texts that the answer never contains as a run of their tokens.
        skip_special_tokens: leave control tokens out of the text.
        detokenize: False leaves `text` empty (and `stop` is then refused).
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        for name, (lowest, highest, inclusive) in _RANGES.items():
            self._check_real(name, lowest, highest, inclusive)
        for name, (fewest, most, optional) in _WHOLE.items():
            _check_whole(name, getattr(self, name), fewest, most, optional=optional)
        _check_flags(self, "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")
        self._check_texts()
        self._check_token_ids()
        if self.best_of is not None and self.best_of < self.n:
            raise _reject("best_of", self.best_of, f"at least n={self.n}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _reject("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")

    def _check_real(self, name: str, lowest: float, highest: float, inclusive: bool) -> None:
        value = getattr(self, name)
        allowed = f"a finite number {'of at least' if inclusive else 'above'} {lowest:g}" + (
            f" and at most {highest:g}" if math.isfinite(highest) else ""
        )
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise _reject(name, value, allowed)
        if value < lowest or value > highest or (value == lowest and not inclusive):
            raise _reject(name, value, allowed)

    def _check_texts(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "bad_words"):
            texts = getattr(self, name)
            if isinstance(texts, str):
                raise _reject(name, texts, "a list of texts that are not empty")
            if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
                raise _reject(name, texts, "a list of texts that are not empty")
            object.__setattr__(self, name, tuple(texts))
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _reject("stop", f"{len(self.stop)} texts", f"at most {MAX_STOP_STRINGS} texts")
        if self.stop and not self.detokenize:
            raise _reject("stop", self.stop, "empty when detokenize is false")

    def _check_token_ids(self) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            ids = getattr(self, name)
            if ids is None:
                continue
            if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(type(token) is int for token in ids):
                raise _reject(name, ids, "a list of token ids")
            object.__setattr__(self, name, tuple(ids))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _reject("allowed_token_ids", self.allowed_token_ids, "left out or not empty")
        self._check_biases()

    def _check_biases(self) -> None:
        allowed = "a map from token ids to finite numbers"
        if not isinstance(self.logit_bias, Mapping):
            raise _reject("logit_bias", self.logit_bias, allowed)
        for token, bias in self.logit_bias.items():
            if type(token) is not int or isinstance(bias, bool) or not isinstance(bias, Real) or not -MAX_BIAS <= bias <= MAX_BIAS:
                raise _reject("logit_bias", {token: bias}, allowed)

    @property
    def num_choices(self) -> int:
        """Choices that are generated."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_logprobs(self) -> int | None:
        """Most likely tokens whose log-probabilities must be known beside the chosen one's; None: not even that one's."""
        return 0 if self.logprobs is None and self.num_choices > self.n else self.logprobs

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature < LOWEST_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """True when the history of the sequence changes the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks every token id that the request names.

        Raises:
            RequestError: one is outside ``0 .. vocab_size - 1``.
        """
        named = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": self.logit_bias,
        }
        for name, ids in named.items():
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise _reject(name, token, f"a token id from 0 to {vocab_size - 1}")


COMPUTE_ONLY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)  # of a prompt whose KV is what is wanted


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """The fields of one beam search, with the meanings that transformers gives them.

    Attributes:
        num_beams: continuations that are pursued side by side.
        n: how many of the finished ones are returned, best first; all `num_beams` if not given.
        max_tokens: most tokens of an answer; None: as many as the model length leaves. The default is shortened to that, too.
        length_penalty: a finished answer's score is the sum of its tokens' log-probabilities divided by its length to this power:
            above 0 favours long answers, below 0 short ones.
        early_stopping: when to end once `num_beams` answers are finished. True: at once. False: when the best running beam, at its
            present length, scores below the worst of them. "never": when no running beam can score above it any more.
        ignore_eos: the model's end tokens do not end an answer.
        skip_special_tokens: leave control tokens out of the text.
    """

    num_beams: int
    n: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_whole("num_beams", self.num_beams, 1, MAX_BEAMS)
        _check_whole("n", self.n, 1, self.num_beams, optional=True)
        _check_whole("max_tokens", self.max_tokens, 1, 2**31 - 1, optional=True)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, Real) or not abs(penalty) <= MAX_LENGTH_PENALTY:
            raise _reject("length_penalty", penalty, f"a number from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise _reject("early_stopping", self.early_stopping, 'true, false or "never"')
        _check_flags(self, "ignore_eos", "skip_special_tokens")

    @property
    def num_answers(self) -> int:
        """Answers that are returned."""
        return self.num_beams if self.n is None else self.n
