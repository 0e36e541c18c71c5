"""Clients that others wrote around OpenAI's: `make nightly` installs them, `make test` does not."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.running import RunningServer
from server.scripted import MODEL_NAME
from server.test_chat import ANSWER

# What their own dependencies say of each other, to whoever imports them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def test_langchain(server: RunningServer) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    chat = langchain_openai.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model=MODEL_NAME, max_retries=0)
    whole = chat.invoke("hello")
    assert whole.content == ANSWER
    assert whole.usage_metadata["output_tokens"] == len(ANSWER) + 1
    chunks = list(chat.stream("hello"))
    assert len(chunks) > 2 and "".join(chunk.content for chunk in chunks) == ANSWER

    async def ask() -> str:
        answer = await chat.ainvoke([("human", "hello")])
        await chat.root_async_client.close()
        return answer.content

    assert asyncio.run(ask()) == ANSWER
    with pytest.raises(Exception, match="temperature"):
        chat.invoke("hello", temperature=-1)


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["streamed", "whole"])
def test_llm(server: RunningServer, tmp_path: Path, options: list[str]) -> None:
    pytest.importorskip("llm")
    entry = f'- {{model_id: octavo, model_name: {MODEL_NAME}, api_base: "{server.url}/v1"}}\n'
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    command = [sys.executable, "-m", "llm", "--model", "octavo", "hello", *options]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout.strip()) == (0, ANSWER), finished.stderr
