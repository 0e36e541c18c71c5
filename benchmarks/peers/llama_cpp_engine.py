"""llama.cpp through llama-cpp-python's low-level interface, for `compare.py`: continuous batching as llama-server does it."""

import llama_cpp
import numpy
from protocol import Answer, Task, run

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
MAX_SEQUENCES = 64
SEQUENCE_TOKENS = 1088  # the longest of W64 has 1,085


class Batcher:
    """Feeds prompts and newest tokens in batches until every answer has its length."""

    def __init__(self, model_path: str, num_threads: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(model_path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = MAX_SEQUENCES * SEQUENCE_TOKENS, MAX_SEQUENCES
        params.n_batch, params.n_ubatch = BATCH_TOKENS, MICRO_BATCH_TOKENS
        params.kv_unified = False  # in one cache for all, each token's attention reads every sequence's
        params.n_threads = params.n_threads_batch = num_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def __call__(self, prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        answers: list[list[int]] = [[] for _ in prompts]
        waiting = [list(token_ids) for token_ids in prompts]
        while any(len(answer) < length for answer, length in zip(answers, output_tokens, strict=True)):
            self.batch.n_tokens = 0
            due: list[tuple[int, int]] = []
            for index, tokens in enumerate(waiting):  # newest tokens first, then pieces of prompts
                if len(tokens) == 1:
                    self._feed(index, prompts, answers, waiting, due)
            for index, tokens in enumerate(waiting):
                if len(tokens) > 1:
                    self._feed(index, prompts, answers, waiting, due)
            if llama_cpp.llama_decode(self.context, self.batch) != 0:
                raise RuntimeError("llama_decode failed")
            for index, position in due:
                logits = llama_cpp.llama_get_logits_ith(self.context, position)
                answers[index].append(int(numpy.ctypeslib.as_array(logits, (self.vocab_size,)).argmax()))
                waiting[index] = answers[index][-1:] if len(answers[index]) < output_tokens[index] else []
        return answers

    def _feed(self, index, prompts, answers, waiting, due) -> None:
        """Puts as many of a sequence's waiting tokens into the batch as fit."""
        batch, tokens = self.batch, waiting[index]
        count = min(len(tokens), BATCH_TOKENS - batch.n_tokens)
        first = len(prompts[index]) + max(len(answers[index]) - 1, 0) if answers[index] else len(prompts[index]) - len(tokens)
        for offset in range(count):
            place = batch.n_tokens
            batch.token[place], batch.pos[place] = tokens[offset], first + offset
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, index
            batch.logits[place] = offset == len(tokens) - 1
            batch.n_tokens += 1
        if count == len(tokens):
            due.append((index, batch.n_tokens - 1))
        waiting[index] = tokens[count:]


def load(task: Task) -> Answer:
    """Loads the GGUF file as it is."""
    return Batcher(task.model, task.num_threads)


run(llama_cpp.__version__, load)
