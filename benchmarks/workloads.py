"""The workloads that the benchmarks share: fixed seeds, random token ids, lengths drawn once and for all.

W1 is one request: 64 prompt tokens, 128 output tokens. W64 is 64 requests at once whose lengths are log-normal, as those of
conversations are: prompts of 8 … 1,024 tokens (mean 230), answers of 8 … 384 (mean 131). The two seeds are those for which
the totals are 14,742 prompt and 8,370 output tokens. P1024 and P8192 are one prompt that fills so long a context with
its answer's one token. D16x4096 is 16 requests that decode 64 tokens each behind 4,096 of their own, whose K and V are in the
cache already. S64 is 64 requests that share their first 1,024 prompt tokens and have 64 of their own.
"""

import math
import random
from dataclasses import dataclass

LOG_NORMAL_SIGMA = 0.8
PROMPT_SEED, OUTPUT_SEED, TOKEN_SEED = 3793, 1805, 1
SHARED_TOKENS, OWN_TOKENS, NUM_SHARING = 1024, 64, 64
FIRST_TOKEN_ID = 256  # below it lie the control tokens of common vocabularies


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together.

    Attributes:
        prompts: token ids of each request.
        output_tokens: how many tokens each request is to generate.
        is_prefilled: the prompts are in the prefix cache before the clock starts.
    """

    name: str
    prompts: list[list[int]]
    output_tokens: list[int]
    is_prefilled: bool = False

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


def random_prompts(lengths: list[int], *, vocab_size: int, seed: int = TOKEN_SEED) -> list[list[int]]:
    """Returns one prompt of random token ids for each length."""
    source = random.Random(seed)
    return [[source.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(length)] for length in lengths]


def one_request(vocab_size: int) -> Workload:
    """Returns W1."""
    return Workload("W1", random_prompts([64], vocab_size=vocab_size), [128])


def many_requests(vocab_size: int) -> Workload:
    """Returns W64."""
    prompts = log_normal_lengths(64, mean=230, low=8, high=1024, seed=PROMPT_SEED)
    outputs = log_normal_lengths(64, mean=131, low=8, high=384, seed=OUTPUT_SEED)
    return Workload("W64", random_prompts(prompts, vocab_size=vocab_size), outputs)


def long_prompt(vocab_size: int, *, num_tokens: int) -> Workload:
    """Returns P1024, P8192 or their like: a prompt that fills the context but for one token."""
    return Workload(f"P{num_tokens}", random_prompts([num_tokens - 1], vocab_size=vocab_size), [1])


def long_contexts(vocab_size: int, *, num_requests: int = 16, num_tokens: int = 4096) -> Workload:
    """Returns D16x4096 or its like."""
    prompts = random_prompts([num_tokens] * num_requests, vocab_size=vocab_size)
    return Workload(f"D{num_requests}x{num_tokens}", prompts, [64] * num_requests, is_prefilled=True)


def shared_prefix(vocab_size: int) -> Workload:
    """Returns S64."""
    shared, *own = random_prompts([SHARED_TOKENS] + [OWN_TOKENS] * NUM_SHARING, vocab_size=vocab_size)
    return Workload(f"S{NUM_SHARING}", [shared + tokens for tokens in own], [16] * NUM_SHARING)
