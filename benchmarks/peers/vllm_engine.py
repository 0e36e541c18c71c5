"""vLLM on a processor, for `compare.py`. `compare.py` sets the environment variables that its documentation recommends."""

from protocol import Answer, Task, run
from vllm import LLM, SamplingParams, __version__


def load(task: Task) -> Answer:
    """Loads with prefix caching off."""
    llm = LLM(task.model, dtype=task.options["dtype"], enable_prefix_caching=False, max_model_len=2048, max_num_seqs=64)

    def answer(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in output_tokens]
        outputs = llm.generate([{"prompt_token_ids": token_ids} for token_ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return answer


if __name__ == "__main__":  # vLLM starts its engine as a process that imports this file again
    run(__version__, load)
