"""How much is reserved for a sequence where memory is not paged.

Owns: the policies of Kwon et al., SOSP 2023, section 6.1. Must not know: where a run lies.
"""

from collections.abc import Callable

Policy = Callable[[int, int, int], int]  # (tokens of the prompt, tokens at the end, longest sequence) -> tokens to reserve


def reserve_maximum(num_prompt_tokens: int, final_length: int, max_model_len: int) -> int:
    """Reserves for the longest sequence that there may be."""
    return max_model_len


def reserve_power_of_two(num_prompt_tokens: int, final_length: int, max_model_len: int) -> int:
    """Reserves the prompt and the next power of two of the answer: as a guess that is never more than twice too large."""
    num_output_tokens = final_length - num_prompt_tokens
    return min(num_prompt_tokens + (1 << (num_output_tokens - 1).bit_length()), max_model_len)


def reserve_exactly(num_prompt_tokens: int, final_length: int, max_model_len: int) -> int:
    """Reserves what the sequence will need, which nobody can know."""
    return final_length
