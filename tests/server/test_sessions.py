"""``/octavo/sessions``, and ``octavo session`` as its client."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.tiny_engine import TinyModels
from octavo.cli.session import command
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.loading import load_engine
from octavo.errors import OctavoError
from octavo.models.cache_directory import cache_directory
from octavo.models.packaged_models import PACKAGED_MODELS
from server.running import RunningServer, running_server

MODEL_PATH = cache_directory() / "models" / PACKAGED_MODELS[DEFAULT_MODEL].file_name
PROMPT = "A conversation that is longer than two blocks of sixteen tokens."  # one token for each byte


@pytest.fixture(scope="module")
def models() -> TinyModels:
    return TinyModels()


@pytest.fixture
def start(models: TinyModels, tmp_path: Path):
    """A function that returns a context in which a server with the directory of sessions runs."""
    return lambda **settings: running_server(models.engine(), session_dir=str(tmp_path / "sessions"), **settings)


def post(server: RunningServer, name: str, action: str, headers: dict | None = None, **fields):
    return server.http.post("/octavo/sessions", json={"name": name, "action": action, **fields}, headers=headers)


def cached_tokens(server: RunningServer, **fields) -> int:
    body = server.complete(prompt=PROMPT + " Go on.", max_tokens=1, **fields).json()
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_session_outlives_its_server(start) -> None:
    with start() as server:
        saved = post(server, "mine", "save", prompt=PROMPT)
        assert saved.status_code == 200, saved.text
        assert saved.json()["num_tokens"] == saved.json()["num_cached_tokens"] == len(PROMPT)
        server.wait_until_idle()
    with start() as server:
        assert post(server, "mine", "load").json() == saved.json()
        server.wait_until_idle()
        assert cached_tokens(server) == len(PROMPT)


def test_no_block_is_held_while_the_weights_are_read(models: TinyModels, tmp_path: Path) -> None:
    engine = models.engine()
    sessions, used = engine.sessions, []
    take_fingerprint = sessions._fingerprint
    sessions._fingerprint = lambda: used.append(engine.stats().memory.num_used_blocks) or take_fingerprint()
    with running_server(engine, session_dir=str(tmp_path / "sessions")) as server:
        assert post(server, "mine", "save", prompt=PROMPT).status_code == 200
        server.wait_until_idle()
    assert used[0] == 0


def test_sessions_are_listed(start) -> None:
    with start() as server:
        assert server.http.get("/octavo/sessions").json() == {"sessions": []}
        for name in ("b", "a"):
            post(server, name, "save", prompt=PROMPT)
        listed = server.http.get("/octavo/sessions").json()["sessions"]
        assert [(session["name"], session["num_tokens"]) for session in listed] == [("a", len(PROMPT)), ("b", len(PROMPT))]


NAMES_THAT_LEAVE = ["../x", "/etc/passwd", "a/b", "..", ".hidden", "a\0b", "", "x" * 101, "a\n", "C:\\x"]


def test_no_name_leaves_the_directory(start, tmp_path: Path) -> None:
    with start() as server:
        for name in NAMES_THAT_LEAVE:
            for action, conversation in (("save", {"prompt": PROMPT}), ("load", {})):
                response = post(server, name, action, **conversation)
                assert response.status_code == 400 and response.json()["error"]["param"] == "name", repr(name)
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_directory_is_not_followed(start, tmp_path: Path) -> None:
    with start() as server:
        post(server, "mine", "save", prompt=PROMPT)
        (file,) = tmp_path.glob("sessions/*/mine.session")
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        before = (tmp_path / "elsewhere").read_bytes()
        assert post(server, "mine", "load").status_code == 400
        assert post(server, "mine", "save", prompt=PROMPT + "!").status_code == 200
        assert (tmp_path / "elsewhere").read_bytes() == before


def test_keys_do_not_see_each_others_sessions(start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.ann]\nkey = "a"\n[keys.bob]\nkey = "b"\n')
    ann, bob = ({"Authorization": f"Bearer {key}"} for key in "ab")
    with start(api_keys=str(keys)) as server:
        assert post(server, "mine", "save", ann, prompt=PROMPT).status_code == 200
        assert post(server, "mine", "load", bob).status_code == 404
        assert server.http.get("/octavo/sessions", headers=bob).json() == {"sessions": []}
        assert post(server, "mine", "load", ann).status_code == 200


def test_what_cannot_be_done_is_said(start, models: TinyModels, tmp_path: Path) -> None:
    with start() as server:
        assert post(server, "none", "load").json()["error"] == {
            "message": "there is no session 'none'",
            "type": "not_found_error",
            "param": "name",
            "code": "not_found",
        }
        assert post(server, "s", "save").json()["error"]["param"] == "prompt"
        assert post(server, "s", "save", prompt=PROMPT, messages=[{"role": "user", "content": "x"}]).status_code == 400
        assert post(server, "s", "load", prompt=PROMPT).json()["error"]["param"] == "prompt"
        field = {"add_generation_prompt": False}
        assert post(server, "s", "load", **field).json()["error"]["param"] == "add_generation_prompt"
        assert post(server, "s", "save", prompt=PROMPT, **field).json()["error"]["param"] == "add_generation_prompt"
        post(server, "mine", "save", prompt=PROMPT)
    with running_server(models.engine(kv_dtype="bf16"), session_dir=str(tmp_path / "sessions")) as server:
        error = post(server, "mine", "load").json()["error"]
        assert (
            error["code"] == "session_refused" and "kv_dtype='fp32'" in error["message"] and str(tmp_path) not in error["message"]
        )
    with running_server(models.engine()) as server:
        assert post(server, "mine", "load").json()["error"]["code"] == "sessions_off"
    (tmp_path / "file").write_text("in the way")
    with running_server(models.engine(), session_dir=str(tmp_path / "file")) as server:
        assert "cannot be made" in post(server, "mine", "save", prompt=PROMPT).json()["error"]["message"]


def test_the_command_saves_lists_and_loads(start) -> None:
    def run(*arguments: str, text: str | None = None) -> str:
        result = CliRunner().invoke(command, ["--url", server.url, *arguments], input=text, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    with start() as server:
        assert run("save", "talk", "--prompt", PROMPT).startswith(f"saved talk: {len(PROMPT)} tokens, {len(PROMPT)} of them")
        assert run("list").startswith(f"talk  {len(PROMPT)} tokens")
        assert run("load", "talk").startswith(f"loaded talk: {len(PROMPT)} tokens")
        with pytest.raises(OctavoError, match="there is no session 'other'"):
            run("load", "other")
        with pytest.raises(OctavoError, match="no chat template"):
            run("save", "chat", "--messages", "-", text=json.dumps([{"role": "user", "content": "x"}]))


TALK = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "Which river flows through Paris?"},
    {"role": "assistant", "content": "The Seine flows through Paris."},
    {"role": "user", "content": "And through Cologne?"},
]


@pytest.mark.slow
@pytest.mark.skipif(not MODEL_PATH.exists(), reason=f"{DEFAULT_MODEL} is not in the cache: octavo pull {DEFAULT_MODEL}")
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_chat_of_the_default_model_goes_on_where_it_was_saved(tmp_path: Path, kv_dtype: str) -> None:
    config = EngineConfig(model=str(MODEL_PATH), kv_memory="64MiB", kv_dtype=kv_dtype, max_model_len=512)
    settings = {"session_dir": str(tmp_path)}
    fields = {"messages": TALK, "max_tokens": 12, "temperature": 0, "logprobs": True}
    with running_server(load_engine(config), **settings) as server:
        expected = server.chat(**fields).json()["choices"]
        saved = post(server, "talk", "save", messages=TALK).json()
        server.wait_until_idle()
    with running_server(load_engine(config), **settings) as server:
        assert post(server, "talk", "load").json() == saved
        body = server.chat(**fields).json()
        assert body["choices"] == expected
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == body["usage"]["prompt_tokens"] - 1 == saved["num_tokens"] - 1
        server.wait_until_idle()


@pytest.mark.parametrize("options", [[], ["--prompt", "x", "--messages", "-"], ["--messages", "-"]])
def test_the_command_wants_one_conversation(options: list[str]) -> None:
    result = CliRunner().invoke(command, ["save", "x", *options], input="no JSON")
    assert result.exit_code == 2
