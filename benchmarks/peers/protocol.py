"""What `compare.py` asks of every engine, and how the engine answers. Needs nothing but the standard library.

An engine's script reads one `Task` as JSON from standard input, loads its model, answers, and prints its `Result` as one line of
JSON after `RESULT_MARK`: engines print lines of their own before and after. It runs in that engine's own environment, so this file
must import nothing from Octavo.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

STARTED = time.perf_counter()
RESULT_MARK = "result: "


@dataclass(frozen=True)
class Task:
    """One run of one workload.

    Attributes:
        model: a file or folder in the form that the engine wants.
        prompts: token ids of requests that arrive together.
        output_tokens: how many tokens each is to generate, greedily, past any end-of-sequence token.
        alone: indices of requests to answer once more, each on its own, after the timed run.
        num_threads: processors to use.
        options: further settings of the engine, by name.
    """

    model: str
    prompts: list[list[int]]
    output_tokens: list[int]
    alone: list[int]
    num_threads: int
    options: dict[str, str]


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        version: the engine's version.
        ready_s: from the script's start until the model could answer.
        elapsed_s: from handing over all prompts to the last token.
        answers: generated token ids of each request.
        alone: generated token ids of each request of `Task.alone`.
    """

    version: str
    ready_s: float
    elapsed_s: float
    answers: list[list[int]]
    alone: list[list[int]]


class Answer(Protocol):
    """Generates for prompts that arrive together: token ids in, one list of generated ids for each."""

    def __call__(self, prompts: list[list[int]], output_tokens: list[int], /) -> list[list[int]]: ...


def run(version: str, load: Callable[[Task], Answer]) -> None:
    """Reads the task, loads, warms up, times the answers, and prints the result."""
    task = Task(**json.load(sys.stdin))
    answer = load(task)
    ready_s = time.perf_counter() - STARTED
    answer([task.prompts[0][:8]], [4])
    started = time.perf_counter()
    answers = answer(task.prompts, task.output_tokens)
    elapsed_s = time.perf_counter() - started
    alone = [answer([task.prompts[index]], [task.output_tokens[index]])[0] for index in task.alone]
    print(RESULT_MARK + json.dumps(asdict(Result(version, ready_s, elapsed_s, answers, alone))), flush=True)


def read_result(output: str) -> Result:
    """Returns the result that a script printed; raises RuntimeError if there is none."""
    for line in output.splitlines():
        if line.startswith(RESULT_MARK):
            return Result(**json.loads(line.removeprefix(RESULT_MARK)))
    raise RuntimeError("the script printed no result")
