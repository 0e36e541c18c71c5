"""How long prompts and answers are.

Owns: the distributions of lengths. Must not know: when requests come.

Source: the means are those of Kwon et al., SOSP 2023 (section 6.1), which gives no spreads. ShareGPT's answers have the spread at
which the paper's own share of tokens under reserve-maximum comes out (20.4 % of the memory); the other spreads are ours.
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class LogNormal:
    """Lengths whose logarithm is normal.

    Attributes:
        mean: of the lengths themselves, in tokens.
        sigma: standard deviation of their logarithm; 0 = every length is the mean.
    """

    mean: float
    sigma: float

    def draw(self, source: random.Random) -> int:
        """Returns one length of at least 1 token."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return max(1, round(source.lognormvariate(mu, self.sigma)))


@dataclass(frozen=True)
class Lengths:
    """The lengths of a kind of requests."""

    prompt: LogNormal
    output: LogNormal

    def draw(self, source: random.Random, max_tokens: int) -> tuple[int, int]:
        """Returns the tokens of a prompt and of its answer: a prompt of at most half of ``max_tokens``, together at most all."""
        num_prompt_tokens = min(self.prompt.draw(source), max_tokens // 2)
        return num_prompt_tokens, min(self.output.draw(source), max_tokens - num_prompt_tokens)


DATASETS = {
    "sharegpt": Lengths(LogNormal(161.31, 1.0), LogNormal(337.99, 0.75)),
    "alpaca": Lengths(LogNormal(19.31, 0.5), LogNormal(58.45, 0.9)),
}
