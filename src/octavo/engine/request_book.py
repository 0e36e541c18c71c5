"""What becomes of requests: from when they are queued until somebody takes the result, and what is remembered after that.

Owns: the requests in flight, what a step's tokens do to them, results, and the memory of those that left. Must not know: what a
request may ask for, who runs when.

Invariants:
1. Every request in flight has at least one choice, and one that has not ended.
2. A request leaves in the step in which its last choice ends, or when it is aborted; its blocks go back then.
"""

import time

import numpy as np

from octavo.engine.beam_group import BeamGroup
from octavo.engine.branching import PastRequest, PastRequests
from octavo.engine.explanation import ExplanationLog, RequestExplanation, explain
from octavo.engine.in_flight import InFlight
from octavo.engine.request import Choice, Request, describe_logprobs
from octavo.engine.stats import StatsCollector
from octavo.outputs import OutputDelta, RequestOutput
from octavo.runner.model_runner import StepResult
from octavo.runner.sampler import TokenLogprobs
from octavo.scheduler.batch import ScheduledBatch


class RequestBook:
    """The requests of one engine.

    Attributes:
        requests: those in flight, by id.
        beams: of the requests in flight that are beam searches, by request id.
        finished: the results that nobody has taken yet, by request id.
    """

    def __init__(self, in_flight: InFlight, stats: StatsCollector):
        self.requests: dict[str, Request] = {}
        self.beams: dict[str, BeamGroup] = {}
        self.finished: dict[str, RequestOutput] = {}
        self._in_flight = in_flight
        self._stats = stats
        self._explanations = ExplanationLog()
        self._past = PastRequests()

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request wherever it is and returns what it has; None if it is not in flight."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        if request.is_beam_search:
            self.beams[request_id].abort()
        for choice in request.choices:
            if choice.output.finish_reason is None:
                choice.abort()
                self._in_flight.drop(choice)
        request.keep_best()
        self._leave(request)
        return request.output()

    def peek(self, request_id: str) -> RequestOutput:
        """Returns a request's result as it stands, in flight or finished."""
        request = self.requests.get(request_id)
        return self.finished[request_id] if request is None else request.output()

    def snapshot(self, request_id: str) -> PastRequest | None:
        """Returns what can be branched off from a request in flight or one that left lately; None if it is neither.

        Side effects: see `InFlight.snapshot`.
        """
        request = self.requests.get(request_id)
        return self._past.find(request_id) if request is None else self._in_flight.snapshot(request)

    def remembers(self, request_id: str) -> bool:
        """Returns whether `snapshot` knows a request."""
        return request_id in self.requests or self._past.find(request_id) is not None

    def explain(self, request_id: str) -> RequestExplanation | None:
        """Returns what happened to a request that is in flight or left lately; None for any other."""
        request = self.requests.get(request_id)
        return self._explanations.find(request_id) if request is None else explain(request, self._in_flight.scheduler.waiting)

    # ---- what a step does

    def note_admissions(self, batch: ScheduledBatch) -> None:
        """Notes when requests were first admitted."""
        now = time.monotonic()
        for sequence in batch.admitted:
            metrics = self._in_flight.choices[sequence.sequence_id].request.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now

    def update(self, result: StepResult) -> list[OutputDelta]:
        """Gives the choices what a step computed for them; returns what callers may see of it."""
        now, choices = time.monotonic(), self._in_flight.choices
        for sequence_id, scored in result.prompt_logprobs.items():
            self._add_prompt_logprobs(choices[sequence_id].request, scored)
        deltas = [self._embed(choices[sequence.sequence_id], vector, now) for sequence, vector in result.embedded]
        sampled = zip(self._in_flight.choices_of(result.sampled_for), result.token_ids, result.logprobs, strict=True)
        for choice, token_id, logprobs in sampled:
            delta = choice.append_plain(token_id)
            if delta is not None:
                deltas.append(delta)
                continue
            if choice.request.is_beam_search:
                deltas += self._score(choice, logprobs, now)
                continue
            others = self._in_flight.fork(choice) if choice.sequence.num_choices > 1 else ()
            self._append(choice, token_id, logprobs, now, deltas)
            for other in others:
                _, token_id, logprobs = next(sampled)
                self._append(other, token_id, logprobs, now, deltas)
        return deltas

    def _add_prompt_logprobs(self, request: Request, scored: list[TokenLogprobs]) -> None:
        assert request.prompt_logprobs is not None, "prompt logprobs arrived that nobody asked for"
        request.prompt_logprobs += [describe_logprobs(entry, self._in_flight.tokenizer) for entry in scored]

    def _append(self, choice: Choice, token_id: int, logprobs: TokenLogprobs | None, now: float, deltas: list[OutputDelta]) -> None:
        """Gives a choice its next token, and adds to ``deltas`` what callers may see of it."""
        request, is_first = choice.request, choice.num_tokens == 0
        delta = choice.append(token_id, logprobs)
        if is_first:
            request.note_token(now)
            delta.prompt_logprobs = request.prompt_logprobs
        if delta.finish_reason is not None:
            self._finish(choice, now)
        if not request.is_held_back:
            deltas.append(delta)
        elif request.request_id not in self.requests:
            deltas += request.last_deltas()

    def _score(self, choice: Choice, logprobs: TokenLogprobs | None, now: float) -> list[OutputDelta]:
        """Takes the scores of one beam's next tokens; returns the answers when the search is over."""
        request = choice.request
        assert logprobs is not None, "a beam is scored by log-probabilities"
        request.note_token(now)
        if not self.beams[request.request_id].take_scores(choice.sequence, logprobs):
            return []
        self._settle(request, now)
        return request.last_deltas()

    def _embed(self, choice: Choice, vector: np.ndarray, now: float) -> OutputDelta:
        choice.request.embedding = vector
        delta = choice.end()
        self._finish(choice, now)
        return delta

    # ---- leaving

    def _finish(self, choice: Choice, now: float) -> None:
        """Takes out a choice that ended by itself, and its request with the last of them."""
        self._in_flight.drop(choice)
        if choice.request.is_finished:
            self._settle(choice.request, now)

    def _settle(self, request: Request, now: float) -> None:
        """Takes out a request whose choices have all ended."""
        request.keep_best()
        request.metrics.finished_time = now
        del self.requests[request.request_id]
        self.finished[request.request_id] = request.output()
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self.beams.pop(request.request_id, None)
        self._stats.count_finished(request)
        self._explanations.add(explain(request, self._in_flight.scheduler.waiting))
        self._past.add(request)
