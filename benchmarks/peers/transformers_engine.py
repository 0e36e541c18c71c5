"""transformers, for `compare.py`: `generate` for one request, its continuous batching for several."""

import torch
import transformers
from protocol import Answer, Task, run
from transformers import AutoModelForCausalLM, GenerationConfig


def load(task: Task) -> Answer:
    """Loads with PyTorch's attention."""
    torch.set_num_threads(task.num_threads)
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=task.options["dtype"], attn_implementation="sdpa")

    def one(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        config = GenerationConfig(do_sample=False, max_new_tokens=output_tokens[0], min_new_tokens=output_tokens[0])
        generated = model.generate(torch.tensor([prompts[0]]), generation_config=config)
        return [generated[0, len(prompts[0]) :].tolist()]

    def many(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        with model.continuous_batching_context_manager(generation_config=config) as manager:
            ids = [manager.add_request(token_ids, max_new_tokens=n) for token_ids, n in zip(prompts, output_tokens, strict=True)]
            answers: dict[str, list[int]] = {}
            while len(answers) < len(ids):
                result = manager.get_result(timeout=60)
                if result is not None and result.is_finished():
                    answers[result.request_id] = list(result.generated_tokens)
        return [answers[request_id] for request_id in ids]

    return many if len(task.prompts) > 1 else one


run(transformers.__version__, load)
