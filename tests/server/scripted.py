"""A real engine whose model plays back a script: prompts and answers are bytes, one token each.

Everything but the forward pass is the product's own: scheduler, memory, detokenising, stop strings.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.engine.engine import Engine
from octavo.engine.model_text import ModelText
from octavo.engine.validation import RequestChecker
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.models.chat_template import ChatTemplate
from octavo.models.tokenizer import BYTE_OF_CHARACTER, Tokenizer
from octavo.runner.model_runner import StepResult
from octavo.runner.pooling import Pooling
from octavo.runner.sampler import TokenLogprobs
from octavo.runner.sampling_request import SamplingRequest
from octavo.scheduler.batch import ScheduledBatch, ScheduledSequence
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.scheduler.sequence import Sequence

END, START_OF_TURN, END_OF_TURN = 256, 257, 258
VOCAB_SIZE = 260
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
MODEL_NAME = "scripted"


def make_tokenizer() -> Tokenizer:
    """Returns a tokenizer with a token per byte and three control tokens."""
    characters = {byte: chr(code) for code, byte in BYTE_OF_CHARACTER.items()}
    backend = Backend(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|end|>", "<|start|>", "<|stop|>")])
    return Tokenizer(backend, bos_id=None, eos_id=END)


def answer_of(prompt: bytes, choice_index: int) -> bytes:
    """Returns what the scripted model answers by default: a text that depends on the prompt and the choice."""
    return b"%d:%d:" % (sum(prompt) % 1000, choice_index) + bytes(reversed(prompt[-20:]))


Script = Callable[[bytes, int], list[int]]


def text_script(answers: Mapping[str, str | bytes]) -> Script:
    """Returns a script that knows the answers to some prompts and gives the default answer to others."""

    def play(prompt: bytes, choice_index: int) -> list[int]:
        known = answers.get(prompt.decode(errors="replace"))
        if known is None:
            return [*answer_of(prompt, choice_index), END]
        return [*(known if isinstance(known, bytes) else known.encode()), END]

    return play


@dataclass
class ScriptedRunner:
    """Stands for the model: the next token is the script's.

    Attributes:
        step_seconds: how long a step takes.
        fault: raised in the next step.
        steps: tokens and sequences of every step.
    """

    script: Script
    step_seconds: float = 0.0
    fault: Exception | None = None
    num_steps: int = 0
    weights_bytes: int = 1000
    workspace_bytes: int = 2000
    kv_block_bytes: int = 4096
    hidden_size: int = 3
    _answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def execute(self, batch: ScheduledBatch, requests: Mapping[int, SamplingRequest]) -> StepResult:
        self.num_steps += 1
        if self.fault is not None:
            raise self.fault
        time.sleep(self.step_seconds)
        result = StepResult()
        for entry in batch.entries:
            sequence, request = entry.sequence, requests[entry.sequence.sequence_id]
            if request.pooling is not None:
                if self._pool(entry, request.pooling):
                    result.embedded.append((sequence, request.pooling.vector()))
            elif entry.is_last_chunk:
                first = request.choice_index
                for offset in range(sequence.num_choices):
                    token_id, logprobs = self._next(sequence, request, first + offset)
                    result.sampled_for.append(sequence)
                    result.token_ids.append(token_id)
                    result.logprobs.append(logprobs)
            if request.params.prompt_logprobs is not None:
                end = min(entry.start + entry.num_tokens, request.num_prompt_tokens - 1)
                ids = sequence.token_ids[max(entry.start, request.num_prompt_logprobs) + 1 : end + 1]
                result.prompt_logprobs[sequence.sequence_id] = [describe(token, request.params.prompt_logprobs) for token in ids]
                request.num_prompt_logprobs = max(request.num_prompt_logprobs, end)
        return result

    @staticmethod
    def _pool(entry: ScheduledSequence, pooling: Pooling) -> bool:
        """Adds the hidden states of the entry's tokens: (token, position, 1)."""
        positions = range(max(entry.start, pooling.next_position), entry.start + entry.num_tokens)
        states = [(entry.sequence.token_ids[position], position, 1.0) for position in positions]
        pooling.add(np.array(states, np.float32).reshape(-1, 3))
        return pooling.is_complete

    def _next(self, sequence: Sequence, request: SamplingRequest, choice_index: int) -> tuple[int, TokenLogprobs | None]:
        prompt = bytes(token for token in sequence.token_ids[: sequence.num_prompt_tokens] if token < 256)
        answer = self.script(prompt, 0 if request.params.is_greedy else choice_index)
        position = len(sequence.token_ids) - sequence.num_prompt_tokens
        token = answer[position] if position < len(answer) else ord("x")
        if request.params.allowed_token_ids is not None and token not in request.params.allowed_token_ids:
            token = request.params.allowed_token_ids[0]
        num_top = request.num_logprobs
        return token, None if num_top is None else describe(token, num_top)


def describe(token: int, num_top: int) -> TokenLogprobs:
    """Returns log-probabilities that follow from the token: −token/100, then −1, −2, … for the tokens after it."""
    others = [(token + place) % VOCAB_SIZE for place in range(num_top)]
    return TokenLogprobs([token, *others], [-token / 100, *(-token / 100 if t == token else -float(t) for t in others)], 1)


def make_engine(
    script: Script | None = None,
    *,
    num_blocks: int = 256,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 512,
    step_seconds: float = 0.0,
    chat: bool = True,
    template: str = TEMPLATE,
) -> Engine:
    """Returns an engine that plays back a script."""
    tokenizer = make_tokenizer()
    kv = KVManager(num_blocks=num_blocks, block_size=16, groups=[LayerGroup((0,), None)])
    return Engine(
        text=ModelText(MODEL_NAME, tokenizer, ChatTemplate({"default": template}) if chat else None),
        scheduler=Scheduler(kv, SchedulerLimits(max_num_seqs, max_num_batched_tokens)),
        runner=ScriptedRunner(script or text_script({}), step_seconds),
        checker=RequestChecker(tokenizer, VOCAB_SIZE, max_model_len, frozenset({END})),
    )
