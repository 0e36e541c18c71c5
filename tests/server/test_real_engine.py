"""The whole stack on a tiny random model: what HTTP says is what the engine computes, to the bit."""

import asyncio
import time

import pytest

from engine.tiny_engine import TinyModels, answer
from octavo.sampling_params import SamplingParams
from server.running import RunningServer, running_server

PROMPTS = [list(range(65, 65 + length)) for length in (1, 15, 16, 17, 40)]


@pytest.fixture(scope="module")
def models() -> TinyModels:
    return TinyModels()


@pytest.fixture(scope="module")
def tiny(models: TinyModels):
    with running_server(models.engine()) as server:
        yield server
        server.wait_until_idle()


PARAMS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "seed": 5, "n": 3, "top_k": 40, "min_p": 0.01},
    {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"temperature": 0.0, "logit_bias": {"65": 4.0, "66": -4.0}},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "seed": 7, "top_p": 0.5, "bad_words": ["A"], "min_tokens": 5, "ignore_eos": True},
]


@pytest.mark.parametrize("fields", PARAMS, ids=str)
def test_served_answers_equal_the_engines(models: TinyModels, tiny: RunningServer, fields: dict) -> None:
    body = tiny.complete(prompt=PROMPTS, max_tokens=20, return_token_ids=True, **fields).json()
    biases = {int(token): bias for token, bias in fields.get("logit_bias", {}).items()}
    params = SamplingParams(max_tokens=20, **{**fields, "logit_bias": biases})
    outputs = [output for result in answer(models.engine(), PROMPTS, params) for output in result.outputs]
    assert [choice["token_ids"] for choice in body["choices"]] == [output.token_ids for output in outputs]
    assert [choice["text"] for choice in body["choices"]] == [output.text for output in outputs]
    if "logprobs" in fields:
        for choice, output in zip(body["choices"], outputs, strict=True):
            expected = [next(iter(entry.values())).logprob for entry in output.logprobs]
            assert choice["logprobs"]["token_logprobs"] == expected


def test_concurrent_streams_equal_the_same_alone(models: TinyModels, tiny: RunningServer) -> None:
    async def ask(client, number: int) -> str:
        prompt = [65 + (number * 7 + place) % 60 for place in range(3 + number * 2)]
        stream = await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=24, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all(numbers: list[int], at_once: bool) -> list[str]:
        async with tiny.async_openai() as client:
            if at_once:
                return await asyncio.gather(*(ask(client, number) for number in numbers))
            return [await ask(client, number) for number in numbers]

    numbers = list(range(24))
    assert asyncio.run(ask_all(numbers, True)) == asyncio.run(ask_all(numbers, False))


def test_echoed_logprobs_equal_prompt_logprobs(tiny: RunningServer) -> None:
    body = tiny.complete(prompt=PROMPTS[-1], max_tokens=0, echo=True, logprobs=0, prompt_logprobs=0).json()
    choice = body["choices"][0]
    echoed = choice["logprobs"]["token_logprobs"]
    listed = [next(iter(entry.values()))["logprob"] if entry else None for entry in choice["prompt_logprobs"]]
    assert echoed == listed and len(echoed) == len(PROMPTS[-1])
    assert choice["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 0


def test_small_pool_serves_everybody(models: TinyModels) -> None:
    with running_server(models.engine(kv_memory="20 blocks", max_num_seqs=8, max_num_batched_tokens=32)) as server:
        prompts = [[65 + number] * (5 + 3 * number) for number in range(12)]
        fields = {"max_tokens": 30, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body = server.complete(prompt=prompts, **fields).json()
        alone = answer(models.engine(), prompts, SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
        assert [choice["token_ids"] for choice in body["choices"]] == [result.outputs[0].token_ids for result in alone]
        server.wait_until_idle()


def test_an_idle_server_leaves_the_processor_alone(models: TinyModels) -> None:
    with running_server(models.engine(num_threads=2)) as server:
        server.complete(prompt=PROMPTS[-1], max_tokens=20)
        server.wait_until_idle()
        time.sleep(0.05)  # past the kernels' spinning
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.05
