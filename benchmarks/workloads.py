"""The workloads that the benchmarks share: fixed seeds, random token ids, lengths drawn once and for all.

W1 is one request: 64 prompt tokens, 128 output tokens. W64 is 64 requests at once whose lengths are log-normal, as those of
conversations are: prompts of 8 … 1,024 tokens (mean 230), answers of 8 … 384 (mean 131). The two seeds are those for which
the totals are 14,742 prompt and 8,370 output tokens.
"""

import math
import random
from dataclasses import dataclass

LOG_NORMAL_SIGMA = 0.8
PROMPT_SEED, OUTPUT_SEED, TOKEN_SEED = 3793, 1805, 1
FIRST_TOKEN_ID = 256  # below it lie the control tokens of common vocabularies


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together.

    Attributes:
        prompts: token ids of each request.
        output_tokens: how many tokens each request is to generate.
    """

    name: str
    prompts: list[list[int]]
    output_tokens: list[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(self.output_tokens)


def log_normal_lengths(count: int, *, mean: float, low: int, high: int, seed: int) -> list[int]:
    """Returns lengths in tokens, drawn with ``mean`` and then clamped to ``low`` … ``high``."""
    source = random.Random(seed)
    mu = math.log(mean) - LOG_NORMAL_SIGMA**2 / 2
    return [min(max(round(source.lognormvariate(mu, LOG_NORMAL_SIGMA)), low), high) for _ in range(count)]


def random_prompts(lengths: list[int], *, vocab_size: int) -> list[list[int]]:
    """Returns one prompt of random token ids for each length."""
    source = random.Random(TOKEN_SEED)
    return [[source.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(length)] for length in lengths]


def one_request(vocab_size: int) -> Workload:
    """Returns W1."""
    return Workload("W1", random_prompts([64], vocab_size=vocab_size), [128])


def many_requests(vocab_size: int) -> Workload:
    """Returns W64."""
    prompts = log_normal_lengths(64, mean=230, low=8, high=1024, seed=PROMPT_SEED)
    outputs = log_normal_lengths(64, mean=131, low=8, high=384, seed=OUTPUT_SEED)
    return Workload("W64", random_prompts(prompts, vocab_size=vocab_size), outputs)
