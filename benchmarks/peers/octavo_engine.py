"""Octavo, for `compare.py`."""

from protocol import Answer, Task, run

from octavo import LLM, SamplingParams, __version__


def load(task: Task) -> Answer:
    """Loads with a gibibyte of KV memory; the prefix cache is emptied before every run."""
    llm = LLM(task.model, weights=task.options["weights"], num_threads=task.num_threads, kv_memory="1GiB")

    def answer(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        llm.engine.reset_prefix_cache()
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in output_tokens]
        outputs = llm.generate([{"prompt_token_ids": token_ids} for token_ids in prompts], params)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return answer


run(__version__, load)
