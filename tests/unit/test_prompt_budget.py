"""`octavo.scheduler.prompt_budget`: what a step may spend on prompts beside decodes."""

import pytest

from octavo.scheduler.prompt_budget import PromptBudget


def budget_of(num_decodes, *, max_step_tokens=512, attention_parity_tokens=None):
    budget = PromptBudget(attention_parity_tokens)
    budget.start(max_step_tokens, num_decodes)
    return budget


def test_without_decodes_the_whole_step_is_the_prompts():
    budget = budget_of(0, attention_parity_tokens=100)
    assert budget.allowed(5000, 600) == 512
    budget.spend(5000, 500)
    assert budget.allowed(0, 600) == 12
    budget.spend(0, 12)
    assert budget.is_spent and budget.allowed(0, 1) == 0


@pytest.mark.parametrize(("num_decodes", "num_tokens"), [(1, 32), (16, 32), (20, 40), (200, 312)])
def test_beside_decodes_two_prompt_tokens_go_with_each(num_decodes, num_tokens):
    assert budget_of(num_decodes).allowed(0, 1000) == num_tokens


def test_tokens_deep_in_a_prompt_cost_what_their_attention_adds():
    budget = budget_of(16, attention_parity_tokens=1000)
    assert [budget.allowed(start, 100) for start in (0, 1000, 3000, 7000)] == [32, 16, 8, 4]


def test_what_one_prompt_spends_the_next_lacks():
    budget = budget_of(16, attention_parity_tokens=1000)
    budget.spend(1000, 6)
    assert budget.allowed(0, 100) == 20
    budget.spend(0, 20)
    assert budget.is_spent


def test_a_prompt_of_whatever_length_advances():
    assert budget_of(16, attention_parity_tokens=1).allowed(10_000, 100) == 1
