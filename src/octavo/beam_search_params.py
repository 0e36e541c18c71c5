"""How a beam search goes.

Owns: the fields' names, defaults and allowed ranges. Must not know: models.

Invariants:
1. A `BeamSearchParams` that exists is valid.
"""

import math
from dataclasses import dataclass
from numbers import Real

from octavo.errors import RequestError
from octavo.sampling_params import DEFAULT_MAX_TOKENS

MAX_BEAMS = 64


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """The fields of one beam search, with the meanings that transformers gives them.

    Attributes:
        num_beams: continuations that are pursued side by side.
        n: how many of the finished ones are returned, best first; all `num_beams` if not given.
        max_tokens: most tokens of an answer; the default is shortened to what the model length leaves.
        length_penalty: a finished answer's score is the sum of its tokens' log-probabilities divided by its length to this power:
            above 0 favours long answers, below 0 short ones.
        early_stopping: when to end once `num_beams` answers are finished. True: at once. False: when the best running beam, at its
            present length, scores below the worst of them. "never": when no running beam can score above it any more.
        ignore_eos: the model's end tokens do not end an answer.
        skip_special_tokens: leave control tokens out of the text.
    """

    num_beams: int
    n: int | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_whole("num_beams", MAX_BEAMS)
        self._check_whole("max_tokens", 2**31 - 1)
        if self.n is not None:
            self._check_whole("n", self.num_beams)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, Real) or not math.isfinite(penalty) or abs(penalty) > 100:
            raise _reject("length_penalty", penalty, "a number from -100 to 100")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise _reject("early_stopping", self.early_stopping, 'true, false or "never"')
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _reject(name, getattr(self, name), "true or false")

    @property
    def num_answers(self) -> int:
        """Answers that are returned."""
        return self.num_beams if self.n is None else self.n

    def _check_whole(self, name: str, highest: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
            raise _reject(name, value, f"a whole number from 1 to {highest}")


def _reject(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{name}={value!r} is not allowed: it must be {allowed}", field=name)
