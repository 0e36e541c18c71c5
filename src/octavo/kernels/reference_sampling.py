"""What the sampling operations mean, in float64 numpy.

Owns: the random draw and the order of the filters. Must not know: requests or their parameters' names.

Invariants:
1. A draw is a pure function of the logits' row, its four parameters and its key.
"""

import numpy as np

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key each round
PHILOX_ROUNDS = 10
MASK_32 = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns the four 32-bit words of Philox4x32-10 (Salmon et al., SC 2011) for a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        product0 = PHILOX_MULTIPLIERS[0] * c0
        product1 = PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & MASK_32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & MASK_32,
        )
        k0 = (k0 + PHILOX_WEYL[0]) & MASK_32
        k1 = (k1 + PHILOX_WEYL[1]) & MASK_32
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """Returns the draw in ``[0, 1)`` of one token: 53 bits of Philox with the key ``seed`` and the counter (position, choice)."""
    counter = (position & MASK_32, position >> 32, choice & MASK_32, choice >> 32)
    word0, word1, _, _ = philox4x32(counter, (seed & MASK_32, seed >> 32))
    return ((word1 << 32 | word0) >> 11) * 2.0**-53


def draw_token(logits: np.ndarray, parameters: np.ndarray, draw: float) -> int:
    """Returns the token that ``draw`` selects from one row of logits; parameters as in `Operations.sample`."""
    temperature, top_k, top_p, min_p = (float(value) for value in parameters)
    if temperature == 0.0:
        return int(np.argmax(logits))
    shifted = logits.astype(np.float64) - np.float64(logits.max())
    # The quotient may overflow to -inf for a tiny temperature, which is what it should mean.
    with np.errstate(over="ignore"):
        weights = np.exp(shifted / temperature)
    # By falling logit, ties by rising id. Not by weight: weights that underflow would tie.
    order = np.argsort(-shifted, kind="stable")
    if 0 < top_k < order.size:
        weights[order[int(top_k) :]] = 0.0
    weights[weights < min_p] = 0.0  # the highest weight is exactly 1
    cumulative = np.cumsum(weights[order])
    kept = int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1
    weights[order[kept:]] = 0.0
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the float64 log-probabilities of one row of logits."""
    shifted = logits.astype(np.float64) - np.float64(logits.max())
    return shifted - np.log(np.exp(shifted).sum())
