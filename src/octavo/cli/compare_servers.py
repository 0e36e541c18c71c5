"""The other way to compare: two servers with OpenAI's chat interface, the same conversations.

Owns: what is sent, and what the client's clock says of it. Must not know: how results are shown, or what kind of servers these are.

Invariants:
1. The servers are asked one after the other, each alone, with the same bodies.
2. A time is the client's; what a server does inside is not seen.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from octavo.cli.load import Answer, Load, find_model, run_load
from octavo.comparison.conversations import Conversation
from octavo.comparison.record import Comparison, Difference, Moment, RequestTimes, Run, make_figures, thin_moments

TITLE = "Two servers, the same conversations"
SUMMARY = "{} conversations with one system prompt, sent to {} and to {}, {} at a time, one server after the other."
NOTES = (
    "Answers are greedy (temperature 0) and compared character by character. Times are those of the client: from sending a request "
    "until a piece of the answer has arrived. A piece may hold several tokens; the number of tokens is what the server reports.",
    "Before it is measured, each server gets one short request of another kind, so that a model that is loaded on demand is there.",
)
WARM_UP = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1, "temperature": 0}
SHOWN_CHARS = 24

OnProgress = Callable[[str, int], None]


def compare_servers(
    loads: Sequence[Load], conversations: Sequence[Conversation], concurrency: int, command: str, on_progress: OnProgress
) -> Comparison:
    """Sends the load to each server and compares their answers.

    Args:
        command: what was typed.
        on_progress: called after each answer.
    """
    runs, answers = [], []
    for load in loads:
        run, received = _measure(load, concurrency, on_progress)
        runs.append(run)
        answers.append(received)
    answered = [index for index in range(len(conversations)) if not any(run[index].error for run in answers)]
    differing = [index for index in answered if len({run[index].text for run in answers}) > 1]
    first, second = loads
    return Comparison(
        title=TITLE,
        summary=SUMMARY.format(len(conversations), first.url, second.url, concurrency),
        notes=NOTES,
        command=command,
        settings={
            "first": f"{first.model} at {first.url}",
            "second": f"{second.model} at {second.url}",
            "conversations": f"{len(conversations)}, {concurrency} at a time",
        },
        runs=tuple(runs),
        num_compared=len(answered),
        num_equal=len(answered) - len(differing),
        difference=_difference(conversations[differing[0]], differing[0], runs, answers) if differing else None,
    )


def make_loads(urls: Sequence[str], model: str | None, api_key: str, conversations: Sequence[Conversation]) -> list[Load]:
    """Returns what is sent to each server.

    Args:
        model: its name on both; None = the first that each one lists.

    Raises:
        OctavoError: a server does not answer.
    """
    bodies = [
        {"messages": list(conversation.messages), "max_tokens": conversation.num_answer_tokens, "temperature": 0}
        for conversation in conversations
    ]
    return [Load(url, model or find_model(url, api_key), bodies, api_key) for url in (url.rstrip("/") for url in urls)]


def _measure(load: Load, concurrency: int, on_progress: OnProgress) -> tuple[Run, list[Answer]]:
    """Returns a server's run, and its answers in the order of the conversations."""
    asyncio.run(run_load(Load(load.url, load.model, [WARM_UP], load.api_key), 1, lambda: None))
    num_answered = 0

    def count() -> None:
        nonlocal num_answered
        num_answered += 1
        on_progress(load.url, num_answered)

    began = time.perf_counter()
    answers = asyncio.run(run_load(load, concurrency, count))
    seconds = time.perf_counter() - began
    answers.sort(key=lambda answer: answer.number)
    requests = tuple(_times(answer, began) for answer in answers)
    moments = _moments(requests)
    run = Run(
        name=load.url,
        description=f"the model {load.model}",
        figures=make_figures(requests, moments, seconds),
        requests=requests,
        moments=thin_moments(moments),
        counters={},
        errors=dict(Counter(answer.error for answer in answers if answer.error)),
    )
    return run, answers


def _times(answer: Answer, began: float) -> RequestTimes:
    sent = answer.sent - began
    if answer.error or not answer.chunk_seconds:
        return RequestTimes(sent, None, None, None, None, 0)
    first, last = sent + answer.chunk_seconds[0], sent + answer.chunk_seconds[-1]
    return RequestTimes(sent, None, first, last, None, answer.num_tokens)


def _moments(requests: Sequence[RequestTimes]) -> list[Moment]:
    """Returns how many answers were under way, and how many requests without a first piece, whenever either changed."""
    events = [(request.arrived, 0, 1) for request in requests if request.first_token is not None]
    for request in requests:
        if request.first_token is not None and request.finished is not None:
            events += [(request.first_token, 1, -1), (request.finished, -1, 0)]
    num_running = num_waiting = 0
    moments = []
    for time_s, running, waiting in sorted(events):
        num_running, num_waiting = num_running + running, num_waiting + waiting
        moments.append(Moment(time_s, num_running, num_waiting, None))
    return moments


def _difference(conversation: Conversation, index: int, runs: Sequence[Run], answers: Sequence[Sequence[Answer]]) -> Difference:
    first, second = (run[index].text for run in answers)
    shorter = min(len(first), len(second))
    position = next((place for place in range(shorter) if first[place] != second[place]), shorter)
    said = [f"{run.name}: {text[position : position + SHOWN_CHARS]!r}" for run, text in zip(runs, (first, second), strict=True)]
    return Difference(f"conversation {index + 1}, about {conversation.topic}", position, *said)
