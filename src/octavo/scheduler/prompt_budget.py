"""How many tokens of prompts a step may compute beside the sequences that wait for their next token.

Owns: the price of a prompt's token and what a step may spend. Must not know: sequences, blocks, time.

On a processor the time of a step grows with its tokens, from some thirty on. So beside decodes a step takes only so much of prompts
that it lasts about three times as long as without; the prompts lose no throughput by it. A token far into a prompt attends to all
before it and costs more, so a long prompt's pieces become shorter.

Invariants:
1. What a step may spend depends on the running sequences alone, never on a clock.
2. Without decodes the whole token budget is the prompts'.
"""

import math

PROMPT_TOKENS_PER_DECODE = 2
MIN_DECODES = 16  # a step of fewer lasts hardly less, because it reads all weights like any other


class PromptBudget:
    """The budget of one step after the other.

    Args:
        attention_parity_tokens: the context over which attending costs as much as the rest of computing a token; None: attention
            is not counted.
    """

    def __init__(self, attention_parity_tokens: int | None = None):
        self._attention_parity_tokens = attention_parity_tokens or math.inf
        self._num_tokens = 0
        self._price_left = 0.0

    def start(self, max_step_tokens: int, num_decodes: int) -> None:
        """Begins a step.

        Args:
            max_step_tokens: most tokens of the step.
            num_decodes: sequences that get one token each.
        """
        self._num_tokens = max_step_tokens - num_decodes
        self._price_left = PROMPT_TOKENS_PER_DECODE * max(MIN_DECODES, num_decodes) if num_decodes else math.inf

    @property
    def is_spent(self) -> bool:
        """True when not even one token is left."""
        return self._num_tokens <= 0 or self._price_left < 1

    def allowed(self, start: int, num_wanted: int) -> int:
        """Returns how many of a prompt's next tokens, from position ``start`` on, the step can afford.

        At least one, unless the budget is spent: a prompt of whatever length advances.
        """
        if self.is_spent:
            return 0
        num_tokens = min(num_wanted, self._num_tokens)
        price = num_tokens * self._price(start)
        return num_tokens if price <= self._price_left else max(1, int(self._price_left / self._price(start)))

    def spend(self, start: int, num_tokens: int) -> None:
        """Takes tokens that `allowed` allowed off the budget."""
        self._num_tokens -= num_tokens
        self._price_left -= num_tokens * self._price(start)

    def _price(self, start: int) -> float:
        return 1 + start / self._attention_parity_tokens
