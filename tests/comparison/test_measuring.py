"""octavo.comparison.measuring: the same requests on every kind of memory, in a real engine."""

from dataclasses import replace

import pytest

from comparison.conftest import TOPICS, config, conversations
from octavo.comparison.conversations import MAX_CONVERSATIONS, make_conversations
from octavo.comparison.measuring import Measurement, compare_memories
from octavo.comparison.memories import MEMORY_KINDS
from octavo.errors import ConfigError, RequestError
from octavo.memory.reserving_manager import ReservingManager


def figures(comparison) -> dict:
    return {run.name: run.figures for run in comparison.runs}


def test_every_answer_is_the_same_on_every_memory(comparison) -> None:
    assert comparison.is_exact
    assert comparison.num_equal == comparison.num_compared == len(TOPICS)
    assert comparison.difference is None


def test_paging_holds_more_conversations_and_sharing_all(comparison) -> None:
    peaks = [run.figures.peak_running for run in comparison.runs]
    assert peaks == sorted(peaks) and peaks[0] == 1  # 21 places, and a run takes 16
    assert peaks[-1] == len(TOPICS)


def test_contiguous_memory_is_mostly_wasted_and_paged_memory_is_not(comparison) -> None:
    slots = {name: figure.slots for name, figure in figures(comparison).items()}
    assert slots["contiguous, maximum"].tokens < 0.5 < slots["paged"].tokens
    assert slots["contiguous, maximum"].promised > 0 and slots["paged"].promised == 0
    for used in slots.values():
        assert used.tokens + used.promised + used.unused + used.free == pytest.approx(1)
        assert min(used.tokens, used.promised, used.unused, used.free) >= 0


def test_only_the_shared_memory_finds_prompts_in_its_cache(comparison) -> None:
    hits = [run.counters["prompt_tokens_found_in_cache"] for run in comparison.runs]
    assert hits[:3] == [0, 0, 0] and hits[3] > 0


def test_every_conversation_is_answered_to_its_length(comparison) -> None:
    wanted = [conversation.num_answer_tokens for conversation in conversations()]
    for run in comparison.runs:
        assert [request.num_answer_tokens for request in run.requests] == wanted
        assert all(0 <= r.started <= r.first_token <= r.finished <= run.figures.seconds for r in run.requests)


def test_kernels_see_contiguous_tables(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []
    allocate = ReservingManager.allocate

    def note(self, cache, num_tokens):
        placed = allocate(self, cache, num_tokens)
        tables.extend(table.block_ids for table in cache.tables if placed)
        return placed

    monkeypatch.setattr(ReservingManager, "allocate", note)
    compare_memories(parts, config(), conversations()[:2], "", lambda *_: None)
    assert tables and all(ids == list(range(ids[0], ids[0] + len(ids))) for ids in tables)


def test_one_bit_less_is_a_difference_that_is_shown(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Measurement.run

    def disturbed(self, on_finished):
        result = run(self, on_finished)
        if result.name == "paged":
            entry = self.answers[2].logprobs[4]
            token_id = self.answers[2].token_ids[4]
            entry[token_id] = entry[token_id]._replace(logprob=entry[token_id].logprob * (1 + 2**-50))
        return result

    monkeypatch.setattr(Measurement, "run", disturbed)
    result = compare_memories(parts, config(), conversations(), "", lambda *_: None)
    assert not result.is_exact and result.num_equal == len(TOPICS) - 1
    assert result.difference.where == "conversation 3, about <b>hail</b>"
    assert result.difference.position == 4
    assert result.difference.second.startswith("paged: token ")


def test_progress_is_told_for_every_run(parts) -> None:
    told: dict[str, int] = {}
    compare_memories(parts, config(), conversations()[:3], "", told.__setitem__)
    assert told == {kind.name: 3 for kind in MEMORY_KINDS}


def test_memory_without_room_for_the_longest_sequence_is_refused(parts) -> None:
    with pytest.raises(ConfigError, match="no contiguous room"):
        compare_memories(parts, replace(config(), kv_memory="40 blocks"), conversations(), "", lambda *_: None)


def test_model_without_chat_template_is_refused(parts) -> None:
    bare = parts._replace(files=replace(parts.files, chat_template=None))
    with pytest.raises(RequestError, match="has no chat template"):
        compare_memories(bare, config(), conversations(), "", lambda *_: None)


def test_conversations_differ_and_repeat_for_a_seed() -> None:
    made = make_conversations(MAX_CONVERSATIONS, 3)
    assert len({conversation.messages[1]["content"] for conversation in made}) == MAX_CONVERSATIONS
    assert made == make_conversations(MAX_CONVERSATIONS, 3)
    assert [c.num_answer_tokens for c in made] != [c.num_answer_tokens for c in make_conversations(MAX_CONVERSATIONS, 4)]
