"""A prompt's hidden states on their way to one vector.

Owns: which positions count, and the order of the sum. Must not know: sequences, the step's arrays.

Invariants:
1. The vector depends on the hidden states alone, bit for bit: they are added one by one in the order of their positions, however
   the prompt was cut into steps.
2. Each position counts once, whatever is computed again after a preemption.
"""

from typing import Literal, get_args

import numpy as np

from octavo.errors import RequestError

PoolingKind = Literal["mean", "last"]


class Pooling:
    """Collects the hidden states of one prompt.

    Args:
        kind: "mean" of all positions, or the "last" one alone.
        num_prompt_tokens: positions of the prompt.

    Attributes:
        next_position: the first position whose state is still wanted.
    """

    def __init__(self, kind: PoolingKind, num_prompt_tokens: int):
        self.num_prompt_tokens = num_prompt_tokens
        self.next_position = 0 if kind == "mean" else num_prompt_tokens - 1
        self._sum: np.ndarray | None = None  # float64 [hidden]

    def add(self, states: np.ndarray) -> None:
        """Takes the states of the positions from ``next_position`` on, float32 ``[n, hidden]``."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1])
        for state in states:
            self._sum += state
        self.next_position += len(states)

    @property
    def is_complete(self) -> bool:
        """True when every position that counts was added."""
        return self.next_position == self.num_prompt_tokens

    def vector(self) -> np.ndarray:
        """Returns the vector, float32 ``[hidden]``, of length 1: a mean points where its sum does."""
        assert self._sum is not None and self.is_complete, "the prompt is not computed yet"
        length = np.sqrt(np.sum(self._sum * self._sum))
        return (self._sum / (length or 1.0)).astype(np.float32)


def check_pooling(kind: str) -> None:
    """Raises `RequestError` for a pooling that there is not."""
    if kind not in get_args(PoolingKind):
        raise RequestError(f"pooling={kind!r} is not one of {', '.join(get_args(PoolingKind))}", field="pooling")
