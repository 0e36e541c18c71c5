"""Why a match in the prefix cache is not longer."""

import pytest

from octavo.memory.match_end import NUM_REMEMBERED, EvictedPrefixes, MatchEnd
from octavo.memory.prefix_tree import PrefixNode
from unit.memory_oracle import make, run

PROMPT = list(range(100, 117))  # four blocks of four and one token


def end_of(oracle, prompt, namespace=()):
    return oracle.manager.match(prompt, namespace).find_end()


def test_nothing_cached():
    assert end_of(make(), PROMPT) is MatchEnd.NO_CONTINUATION


def test_all_tokens_but_the_last():
    oracle = make()
    run(oracle, PROMPT)
    assert end_of(oracle, PROMPT) is MatchEnd.ALL_MATCHED


@pytest.mark.parametrize("position", range(1, 16))
def test_another_token(position):
    oracle = make()
    run(oracle, PROMPT)
    other = [*PROMPT[:position], 7, *PROMPT[position + 1 :]]
    assert end_of(oracle, other) is MatchEnd.OTHER_TOKEN


def test_the_cached_prompt_was_shorter():
    oracle = make()
    run(oracle, PROMPT[:8])
    assert end_of(oracle, PROMPT) is MatchEnd.NO_CONTINUATION


def test_a_prompt_that_shares_no_token_is_no_continuation():
    oracle = make()
    run(oracle, PROMPT)
    assert end_of(oracle, [7] * 17) is MatchEnd.NO_CONTINUATION


@pytest.mark.parametrize("num_shared", [0, 8])
def test_another_salt(num_shared):
    oracle = make()
    run(oracle, PROMPT, "theirs")
    if num_shared:
        run(oracle, [*PROMPT[:num_shared], 7], "ours")
    assert end_of(oracle, PROMPT, "ours") is MatchEnd.OTHER_SALT
    run(oracle, PROMPT, "ours")
    assert end_of(oracle, PROMPT, "ours") is MatchEnd.ALL_MATCHED


OURS, THEIRS = ("tenant", "ours"), ("tenant", "theirs")


@pytest.mark.parametrize(
    ("cached", "asking", "is_told"),
    [
        ((THEIRS,), (OURS,), False),
        ((THEIRS, ("salt", "a")), (OURS, ("salt", "a")), False),
        ((THEIRS,), (), False),
        ((), (OURS,), False),
        ((("salt", "b"),), (OURS,), False),
        ((OURS, ("salt", "a")), (OURS,), True),
        ((OURS, ("salt", "a")), (OURS, ("salt", "b")), True),
        ((("salt", "a"),), (("salt", "b"),), True),
        ((("salt", "a"),), (), True),
    ],
    ids=str,
)
def test_nobody_learns_what_another_tenant_has(cached, asking, is_told):
    oracle = make()
    run(oracle, PROMPT, cached)
    assert end_of(oracle, PROMPT, asking) is (MatchEnd.OTHER_SALT if is_told else MatchEnd.NO_CONTINUATION)
    run(oracle, [*PROMPT[:8], 7], asking)
    assert end_of(oracle, PROMPT, asking) is (MatchEnd.OTHER_SALT if is_told else MatchEnd.OTHER_TOKEN)


@pytest.mark.parametrize("namespace", [(), "salted"])
def test_evicted_in_part_or_whole(namespace):
    oracle = make(num_blocks=8)
    run(oracle, PROMPT, namespace)
    seen = set()
    for length in range(4, 33, 4):  # takes ever more of the pool
        run(oracle, [7] * length, "others")
        match = oracle.manager.match(PROMPT, namespace)
        if match.num_tokens < 16:
            assert match.find_end() is MatchEnd.EVICTED
            seen.add(match.num_tokens)
    assert {0} < seen


def test_only_the_last_evictions_are_remembered():
    evicted = EvictedPrefixes()
    root = PrefixNode((), None, 1)
    for token in range(NUM_REMEMBERED + 1):
        evicted.add(PrefixNode((token,), root, 1))
    assert root.content_key is not None
    assert not evicted.has(root.content_key, (0,))
    assert evicted.has(root.content_key, (1,)) and evicted.has(root.content_key, (NUM_REMEMBERED,))
