"""The offline interface: `LLM`.

Owns: turning lists of prompts into requests and results back into lists, in order. Must not know: scheduling, memory, kernels.

Invariants:
1. Results come in the order of the prompts, whatever order they finished in.
2. If one prompt of a call is refused, none of the call's requests stays in the engine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import finalize

from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.loading import load_engine
from octavo.engine.request import namespace_of
from octavo.engine.retain import PinnedPrefix
from octavo.engine.sessions import SessionInfo
from octavo.engine.stall_watch import StallWatch
from octavo.engine.stats import EngineStats
from octavo.errors import RequestError
from octavo.models.conversation import render_conversation
from octavo.outputs import RequestOutput
from octavo.runner.pooling import PoolingKind
from octavo.sampling_params import COMPUTE_ONLY, BeamSearchParams, SamplingParams

PromptLike = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


class LLM:
    """A model, loaded and ready.

    Args:
        model: alias, directory, .gguf file or hub id.
        settings: any field of `EngineConfig`.

    Raises:
        ConfigError: a setting is unknown or has a value that it cannot have.
        CheckpointError, UnsupportedModelError: the model's files are damaged, or ask for what the engine lacks.
        CapacityError: the memory asked for holds no KV block.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **settings: Any):
        self.config = EngineConfig.from_settings({"model": model, **settings})
        self.engine = load_engine(self.config)
        self.tokenizer = self.engine.tokenizer
        self._stalls = StallWatch(self.engine)
        self._closing = finalize(self, self.engine.close)  # when nobody has this object any more, or the interpreter ends

    def close(self) -> None:
        """Ends the model's work: what is cached goes to the disk cache, if there is one. Happens by itself at the end."""
        self._closing()

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt.

        Args:
            prompts: a text, a list of token ids, a map with ``prompt`` or ``prompt_token_ids`` (and optionally ``cache_salt`` and
                ``priority`` and ``retain``), or a list of these.
            sampling_params: one for all prompts, or one for each.
            on_progress: called after each step with (requests finished, requests in all).

        Raises:
            RequestError, CapacityError: a prompt is refused; no other of the call runs on.
        """
        return self._run(_read_prompts(prompts), sampling_params, on_progress)

    def embed(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        *,
        pooling: PoolingKind = "mean",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Computes the `embedding` of each prompt: its pooled hidden states after the final norm, scaled to length 1.

        Args:
            prompts, on_progress: as in `generate`.
            pooling: the "mean" over all tokens, or the "last" token's.

        Raises:
            RequestError, CapacityError: a prompt is refused; no other of the call runs on.
        """
        adders = [partial(self.engine.add_embedding_request, pooling=pooling, **prompt) for prompt in _read_prompts(prompts)]
        return self._finish(adders, on_progress)

    def beam_search(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: BeamSearchParams,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Searches each prompt's most likely continuations with beams; the answers come best first.

        Args:
            prompts, on_progress: as in `generate`.
            params: one for all prompts.

        Raises:
            RequestError, CapacityError: a prompt is refused; no other of the call runs on.
        """
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params is a {type(params).__name__}; it takes BeamSearchParams", field="params")
        listed = _read_prompts(prompts)
        return self._finish([partial(self.engine.add_beam_search, params=params, **prompt) for prompt in listed], on_progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_arguments: Mapping[str, Any] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of a list of them.

        Args:
            conversations: messages ``{"role": …, "content": …}``, or a list of such lists.
            template_arguments: further variables for the chat template.
        """
        listed = _conversations(conversations)
        rendered = [self._render(messages, template_arguments) for messages in listed]
        return self._run(rendered, sampling_params, on_progress)

    def render_chat(self, messages: Sequence[Message], *, template_arguments: Mapping[str, Any] | None = None) -> str:
        """Returns the prompt that the model's chat template makes of ``messages``."""
        text = self._render_hidden(messages, template_arguments)
        return self.tokenizer.control_text.shown(text)

    def _render_hidden(self, messages: Sequence[Message], template_arguments: Mapping[str, Any] | None) -> str:
        if template_arguments is not None and not isinstance(template_arguments, Mapping):
            raise RequestError(
                f"template_arguments is a {type(template_arguments).__name__}; it takes a map", field="template_arguments"
            )
        if self.engine.chat_template is None:
            raise RequestError(
                f"{self.config.model} has no chat template", field="messages", hint="give one with chat_template, or use generate"
            )
        control_text = self.tokenizer.control_text
        return render_conversation(self.engine.chat_template, control_text, messages, arguments=template_arguments)

    def stream(
        self,
        prompt: PromptLike | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Iterator[str]:
        """Yields the answer's text piece by piece.

        Args:
            prompt: as in `generate`, or the messages of one conversation.
            request_id: a name for it, by which it can be forked while it runs and afterwards.

        Abandoning the iterator aborts the request.
        """
        fields = self._read(prompt)
        (params,) = self._params_for(1, sampling_params)
        if params.num_choices != 1:
            name = "n" if params.n > 1 else "best_of"
            raise RequestError(f"{name}={params.num_choices} choices cannot be streamed as one text", field=name)
        request_id = self._add(fields | {"request_id": request_id}, params)
        num_sent = 0
        try:
            while True:  # whoever steps the engine meanwhile, the answer's text grows
                answer = self.engine.peek(request_id).outputs[0]
                piece = answer.text[num_sent:]
                num_sent += len(piece)
                if piece:
                    yield piece
                elif answer.finish_reason is not None:
                    return
                else:
                    self._step()
        finally:
            self.engine.discard(request_id)

    def save_session(self, path: str | Path, prompt: PromptLike | Sequence[Message]) -> SessionInfo:
        """Writes a conversation with its KV to a file, from which `load_session` brings it back.

        Args:
            prompt: as in `generate`, or the messages of one conversation. What of it is not in memory is computed first.

        Raises:
            SnapshotError: the file cannot be written, or memory cannot hold the whole conversation.
        """
        fields = self._read(prompt)
        held = self.engine.sessions.hold(self._compute(fields), namespace_of(fields.get("cache_salt")))
        try:
            return self.engine.sessions.write(held, Path(path))
        finally:
            self.engine.sessions.let_go(held)

    def load_session(self, path: str | Path, *, cache_salt: str | None = None) -> SessionInfo:
        """Brings a saved conversation back into memory: a prompt that begins with its tokens finds them cached.

        Args:
            cache_salt: the salt with which it was saved.

        Raises:
            SnapshotError: there is no such session, or it belongs to another model, engine or salt.
        """
        sessions, namespace = self.engine.sessions, namespace_of(cache_salt)
        loading = sessions.begin(sessions.open(Path(path), namespace), namespace)
        sessions.read(loading)
        return sessions.finish(loading)

    def fork(
        self,
        request_id: str,
        at_token: int | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        choice: int = 0,
        append: str | Sequence[int] = (),
    ) -> list[RequestOutput]:
        """Continues from inside an answer: of a request in flight, or of one that ended lately.

        Args:
            at_token: how many of its tokens are kept, the prompt's included; all if not given.
            sampling_params: one for each branch; the request's own with a fresh seed if not given.
            choice: which of the request's answers.
            append: a text or token ids with which every branch goes on first.

        Raises:
            RequestError: there is no such request, choice or token, or a branch is refused.
            CapacityError: a branch can never fit.
        """
        point = self.engine.branch_point(request_id, choice=choice, at_token=at_token)
        tail = self.tokenizer.encode(append, add_special_tokens=False) if isinstance(append, str) else append
        params = sampling_params or point.params
        listed = [params] if isinstance(params, SamplingParams) else params
        fields = {"prompt": [*point.token_ids, *tail], "priority": point.priority, "cache_salt": point.cache_salt}
        return self._run([fields] * len(listed), listed, None)

    def pin_prefix(
        self, prompt: PromptLike | Sequence[Message], *, ttl_s: float | None = None, cache_salt: str | None = None
    ) -> PinnedPrefix:
        """Computes a prompt, or the messages of one conversation, and keeps its blocks before all others.

        Args:
            ttl_s: seconds after which it is released by itself. `release_prefix` does it before.
            cache_salt: of the requests that share it; a map's own ``cache_salt`` says the same.

        Raises:
            RequestError: the prompt has another ``cache_salt``.
            CapacityError: pins would hold more than `pin_percent` of the blocks.
        """
        fields = {"cache_salt": cache_salt} | self._read(prompt)
        if cache_salt is not None and fields["cache_salt"] != cache_salt:
            raise RequestError(f"the prompt's cache_salt={fields['cache_salt']!r} is not {cache_salt!r}", field="cache_salt")
        return self.engine.prefixes.pin(self._compute(fields), namespace_of(fields["cache_salt"]), ttl_s=ttl_s)

    def release_prefix(self, prefix_id: str, *, cache_salt: str | None = None) -> bool:
        """Lets a pinned prefix count as any other; False if there is none of that name and salt."""
        return self.engine.prefixes.release(prefix_id, namespace_of(cache_salt))

    def stats(self) -> EngineStats:
        """Returns the engine's counters and gauges: blocks, hits, preemptions, bytes."""
        return self.engine.stats()

    def _read(self, prompt: PromptLike | Sequence[Message]) -> dict[str, Any]:
        """Returns the fields of one prompt, or of the prompt that the template makes of one conversation."""
        return self._render(prompt) if _is_conversation(prompt) else _read_prompt(prompt)

    def _compute(self, fields: dict[str, Any]) -> list[int]:
        """Brings the KV of a prompt into memory and returns the prompt's token ids."""
        (answer,) = self._run([fields], COMPUTE_ONLY, None)
        return answer.prompt_token_ids

    def _run(
        self,
        prompts: list[dict[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> list[RequestOutput]:
        params = self._params_for(len(prompts), sampling_params)
        adders = [partial(self._add, prompt, its_params) for prompt, its_params in zip(prompts, params, strict=True)]
        return self._finish(adders, on_progress)

    def _finish(self, adders: Sequence[Callable[[], str]], on_progress: Callable[[int, int], None] | None) -> list[RequestOutput]:
        """Adds requests and returns their results when all have ended; if one is refused, none stays."""
        request_ids: list[str] = []
        try:
            for add in adders:
                request_ids.append(add())
            self._finish_all(request_ids, on_progress)
        except BaseException:
            for request_id in request_ids:
                self.engine.discard(request_id)
            raise
        return [self.engine.take(request_id) for request_id in request_ids]

    def _finish_all(self, request_ids: list[str], on_progress: Callable[[int, int], None] | None) -> None:
        num_unfinished = len(request_ids)
        while num_unfinished > 0:
            self._step()
            num_unfinished = sum(self.engine.is_in_flight(request_id) for request_id in request_ids)
            if on_progress is not None:
                on_progress(len(request_ids) - num_unfinished, len(request_ids))

    def _step(self) -> None:
        self.engine.step()
        stall = self._stalls.check()
        if stall is not None:
            raise stall

    def _params_for(
        self, num_prompts: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            return [sampling_params or self.engine.default_params] * num_prompts
        if isinstance(sampling_params, str) or not isinstance(sampling_params, Sequence):
            raise _wrong_params(sampling_params)
        for params in sampling_params:
            if not isinstance(params, SamplingParams):
                raise _wrong_params(params)
        if len(sampling_params) != num_prompts:
            message = f"there are {len(sampling_params)} sampling_params for {num_prompts} prompts"
            raise RequestError(message, field="sampling_params")
        return sampling_params

    def _render(self, messages: Sequence[Message], template_arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"prompt": self._render_hidden(messages, template_arguments), "is_rendered": True}

    def _add(self, prompt: dict[str, Any], params: SamplingParams) -> str:
        return self.engine.add_request(params=params, **prompt)


def _is_single(prompts: Any) -> bool:
    if not isinstance(prompts, str | Mapping | Sequence):
        raise RequestError(f"prompts is a {type(prompts).__name__}; it takes a text, token ids, a map or a list of these")
    return isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _read_prompts(prompts: PromptLike | Sequence[PromptLike]) -> list[dict[str, Any]]:
    return [_read_prompt(prompt) for prompt in ([prompts] if _is_single(prompts) else prompts)]


def _wrong_params(value: Any) -> RequestError:
    return RequestError(
        f"sampling_params has a {type(value).__name__}; it takes SamplingParams, one for all prompts or a list of one for each",
        field="sampling_params",
    )


def _conversations(given: Any) -> list[Sequence[Message]]:
    """Returns the conversations of a call of `LLM.chat`: one, or a list of them."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        listed = [given] if given and isinstance(given[0], Mapping) else list(given)
        if all(_is_conversation(messages) for messages in listed):
            return listed
    raise RequestError(
        'conversations takes a list of messages {"role": …, "content": …}, or a list of such lists', field="conversations"
    )


def _is_conversation(prompt: Any) -> bool:
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or len(prompt) == 0:
        return False
    return all(isinstance(message, Mapping) for message in prompt)


def _read_prompt(prompt: PromptLike) -> dict[str, Any]:
    """Returns the fields of one prompt under the names of `Engine.add_request`; one that is None counts as not given."""
    if not isinstance(prompt, Mapping):
        return {"prompt": prompt}
    fields = {name: value for name, value in prompt.items() if value is not None}
    texts = [fields.pop(name) for name in ("prompt", "prompt_token_ids") if name in fields]
    unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt", "priority", "retain"}
    if len(texts) != 1 or unknown:
        raise RequestError(
            f"a prompt has the fields {list(prompt)}; it takes either prompt or prompt_token_ids, and cache_salt, priority, retain",
            field="prompt",
        )
    if isinstance(prompt.get("prompt_token_ids"), str):
        raise RequestError("prompt_token_ids is a text; it takes a list of token ids", field="prompt_token_ids")
    return {"prompt": texts[0], **fields}
