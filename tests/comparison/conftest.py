"""Fixtures: a comparison that a tiny model really ran, made once."""

from dataclasses import replace

import pytest

from engine.tiny_engine import SPEC, TinyModels
from octavo.comparison.conversations import Conversation
from octavo.comparison.measuring import compare_memories
from octavo.comparison.record import Comparison
from octavo.config import EngineConfig
from octavo.engine.loading import ModelParts
from octavo.models.chat_template import ChatTemplate

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
SYSTEM = {"role": "system", "content": "Be brief, be kind, and say so when you do not know the answer to a question."}
TOPICS = ("rain", "snow & ice", "<b>hail</b>", "fog", "wind", "dew", "frost", "mist")
NUM_BLOCKS, MAX_MODEL_LEN = 64, 256  # of 16 tokens, two for each token: the model has two layer groups


def conversations() -> list[Conversation]:
    """Returns eight conversations with one beginning."""
    return [
        Conversation(topic, (SYSTEM, {"role": "user", "content": f"What about {topic}?"}), 10 + 5 * index)
        for index, topic in enumerate(TOPICS)
    ]


def config() -> EngineConfig:
    """Returns settings under which two conversations fit if each has the longest run."""
    return EngineConfig(
        kv_dtype="fp32",
        kv_memory=f"{NUM_BLOCKS} blocks",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        num_threads=1,
    )


@pytest.fixture(scope="session")
def parts() -> ModelParts:
    """Returns a tiny random model whose chat template puts messages one after the other."""
    parts = TinyModels().parts(spec=SPEC)
    return parts._replace(files=replace(parts.files, chat_template=ChatTemplate({"default": TEMPLATE})))


@pytest.fixture(scope="session")
def comparison(parts: ModelParts) -> Comparison:
    """Returns the comparison of all kinds of memory."""
    return compare_memories(parts, config(), conversations(), "octavo compare tiny", lambda _name, _num_finished: None)
