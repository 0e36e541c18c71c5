"""OpenVINO GenAI's continuous batching, for `compare.py`: a GGUF file, or a folder exported by optimum-intel."""

import numpy
import openvino
import openvino_genai
from protocol import Answer, Task, run


def load(task: Task) -> Answer:
    """Loads with a gibibyte of KV cache, prefix caching off, and bf16 arithmetic where it is asked for."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": task.num_threads, "INFERENCE_PRECISION_HINT": task.options["precision"]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(task.model, scheduler, "CPU", properties)

    def answer(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        inputs = [openvino.Tensor(numpy.array([token_ids], dtype=numpy.int64)) for token_ids in prompts]
        settings = [openvino_genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False) for n in output_tokens]
        return [list(result.m_generation_ids[0]) for result in pipeline.generate(inputs, settings)]

    return answer


run(openvino_genai.__version__, load)
