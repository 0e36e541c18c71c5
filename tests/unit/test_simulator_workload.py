"""octavo.simulator.workload, lengths and traces: who asks what, and when."""

import json
import random
from itertools import pairwise

import pytest

from octavo.errors import ConfigError
from octavo.simulator.lengths import DATASETS, LogNormal
from octavo.simulator.traces import Trace
from octavo.simulator.workload import Chats, ClosedLoop, OpenLoop, RequestSource


def source(**settings) -> RequestSource:
    """Returns a source of Alpaca-like requests."""
    return RequestSource(DATASETS["alpaca"], **{"max_tokens": 512, "seed": 3, **settings})


@pytest.mark.parametrize("lengths", DATASETS.values(), ids=DATASETS)
def test_mean_lengths_are_the_papers(lengths) -> None:
    draws = random.Random(5)
    prompts, outputs = zip(*(lengths.draw(draws, 2048) for _ in range(40_000)), strict=True)
    assert sum(prompts) / len(prompts) == pytest.approx(lengths.prompt.mean, rel=0.03)
    assert sum(outputs) / len(outputs) == pytest.approx(lengths.output.mean, rel=0.03)


def test_lengths_stay_inside_the_longest_sequence() -> None:
    draws = random.Random(5)
    for _ in range(2000):
        num_prompt_tokens, num_output_tokens = DATASETS["sharegpt"].draw(draws, 100)
        assert 1 <= num_prompt_tokens <= 50
        assert 1 <= num_output_tokens <= 100 - num_prompt_tokens


def test_no_spread_is_always_the_mean() -> None:
    assert {LogNormal(40, 0).draw(random.Random(seed)) for seed in range(20)} == {40}


def test_poisson_arrivals_come_at_the_rate() -> None:
    requests = list(OpenLoop(source(), num_requests=5000, rate=4.0).arrivals())
    assert requests[-1].arrival_s == pytest.approx(5000 / 4, rel=0.05)
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance / mean**2 == pytest.approx(1, rel=0.1)


def test_bursts_come_together_at_the_same_mean_rate() -> None:
    requests = list(OpenLoop(source(), num_requests=5000, rate=4.0, burst_size=10).arrivals())
    assert len({request.arrival_s for request in requests}) == 500
    assert requests[-1].arrival_s == pytest.approx(5000 / 4, rel=0.15)


def test_requests_share_the_system_prompt_only() -> None:
    first, second = OpenLoop(source(num_system_tokens=30), num_requests=2, rate=1.0).arrivals()
    assert first.prompt[0] == second.prompt[0] == range(30)
    assert not set(first.prompt[1]) & set(second.prompt[1])
    assert not set(first.reply) & set(second.reply)


def test_closed_loop_asks_as_often_as_told() -> None:
    workload = ClosedLoop(source(), num_requests=5, num_users=3)
    first = list(workload.arrivals())
    assert [request.arrival_s for request in first] == [0.0] * 3
    assert workload.following(first[0], 7.0).arrival_s == 7.0
    assert workload.following(first[1], 8.0) is not None
    assert workload.following(first[2], 9.0) is None


def test_next_turn_begins_with_all_that_was_said() -> None:
    workload = Chats(source(), num_chats=1, rate=1.0, num_turns=2, think_s=0.0)
    (opening,) = workload.arrivals()
    second = workload.following(opening, 5.0)
    assert second.arrival_s == 5.0
    assert second.prompt[:2] == (*opening.prompt, opening.reply)
    assert second.affinity == opening.affinity
    assert workload.following(second, 9.0) is None, "two turns were asked for"


def test_chat_ends_where_the_next_turn_has_no_room() -> None:
    workload = Chats(source(max_tokens=64), num_chats=1, rate=1.0, num_turns=1000, think_s=0.0)
    (request,) = workload.arrivals()
    num_turns = 0
    while request is not None:
        assert request.num_tokens <= 64
        request = workload.following(request, 0.0)
        num_turns += 1
    assert num_turns < 64


def write_trace(tmp_path, *records) -> Trace:
    """Returns a trace of these lines; those that are no text are written as JSON."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in records), encoding="utf-8")
    return Trace(str(path))


def test_own_trace(tmp_path) -> None:
    plain, first, second = write_trace(
        tmp_path,
        {"arrival_s": 0.5, "prompt_tokens": 9, "output_tokens": 4},
        {"arrival_s": 1, "prompt_tokens": 20, "output_tokens": 1, "prefix": 7, "prefix_tokens": 12},
        "",
        {"arrival_s": 1, "prompt_tokens": 12, "output_tokens": 1, "prefix": 7, "prefix_tokens": 12},
    ).arrivals()
    assert (plain.arrival_s, plain.num_prompt_tokens, len(plain.reply)) == (0.5, 9, 4)
    assert first.prompt[0] == second.prompt[0]
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (20, 12)
    assert first.affinity == second.affinity != plain.affinity


def test_mooncake_trace(tmp_path) -> None:
    first, second = write_trace(
        tmp_path,
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [4, 9, 11]},
        {"timestamp": 3052, "input_length": 1024, "output_length": 6, "hash_ids": [4, 9]},
    ).arrivals()
    assert (first.num_prompt_tokens, len(first.reply)) == (1030, 5)
    assert second.arrival_s == pytest.approx(3.052)
    assert first.prompt[:2] == second.prompt


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ('{"arrival_s": 9, "output_tokens": 1}', "line 2: there is no field 'prompt_tokens'"),
        ('{"arrival_s": 9, "prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens=0"),
        ('{"arrival_s": 9, "prompt_tokens": true, "output_tokens": 1}', "prompt_tokens=True"),
        ('{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}', "arrival_s=nan"),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1}', "before the line above"),
        ('{"arrival_s": 9, "prompt_tokens": 5, "output_tokens": 1, "prefix": 1, "prefix_tokens": 6}', "prefix_tokens=6"),
        ('{"arrival_s": 9, "prompt_tokens": 5, "output_tokens": 1, "prefix": -1, "prefix_tokens": 5}', "-1 does not name"),
        ('{"timestamp": 9000, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "hash_ids"),
        ('{"timestamp": 9000, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}', "'x' does not name"),
    ],
)
def test_damaged_line_is_named(tmp_path, line: str, message: str) -> None:
    trace = write_trace(tmp_path, {"arrival_s": 8, "prompt_tokens": 9, "output_tokens": 4}, line)
    with pytest.raises(ConfigError) as raised:
        list(trace.arrivals())
    assert message in str(raised.value)
