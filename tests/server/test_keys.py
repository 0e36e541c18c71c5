"""Keys, quotas and namespaces."""

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.keys import Quota, read_keys
from server.running import RunningServer, running_server

OPEN = {"/health", "/ready"}
KEY_FILE = """
[keys.alice]
key = "alice-key"

[keys.bob]
key = "bob-key"
namespace = "shared"
priority = 5
requests_per_minute = 2

[keys.carol]
key = "carol-key"
tokens_per_minute = 10
"""


@pytest.fixture(scope="module")
def key_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEY_FILE)
    return path


@pytest.fixture(scope="module")
def guarded(key_file: Path):
    with running_server(api_key="the-key", api_keys=str(key_file)) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_needs_the_key(guarded: RunningServer) -> None:
    routes = [
        (
            method,
            path.replace("{name:path}", "x").replace("{name}", "x").replace("{request_id:path}", "x").replace("{request_id}", "x"),
        )
        for path, item in guarded.app.openapi()["paths"].items()
        for method in item
    ]
    assert len(routes) > 8
    for method, path in [*routes, ("get", "/docs"), ("get", "/openapi.json"), ("get", "/nothing")]:
        for headers in ({}, bearer("wrong"), {"Authorization": "Basic the-key"}, bearer("the-key-and-more")):
            status = guarded.http.request(method, path, headers=headers, json={}).status_code
            assert (status == 401) == (path not in OPEN), (method, path, headers, status)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../v1/models",
        "/v1/models/",
        "/v1%2fmodels",
        "/V1/MODELS",
        "/health/../v1/models",
        "/health%00",
        "/ready/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_no_spelling_of_a_path_gets_around_the_key(guarded: RunningServer, method: str, path: str) -> None:
    assert guarded.http.request(method, guarded.url + path + "?api_key=the-key").status_code == 401


def test_right_keys_pass(guarded: RunningServer) -> None:
    assert guarded.http.get("/v1/models", headers=bearer("the-key")).status_code == 200
    assert guarded.http.get("/v1/models", headers={"Authorization": "bearer alice-key"}).status_code == 200
    assert guarded.http.get("/v1/models", headers={"x-api-key": "the-key"}).status_code == 200


def test_request_quota(guarded: RunningServer) -> None:
    statuses = [guarded.http.post("/v1/completions", json={"prompt": "a"}, headers=bearer("bob-key")).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = guarded.http.post("/v1/completions", json={"prompt": "a"}, headers=bearer("bob-key"))
    assert refused.json()["error"]["code"] == "quota_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 30


def test_token_quota_is_charged_what_was_used(guarded: RunningServer) -> None:
    body = {"prompt": "a" * 20, "max_tokens": 20}
    first = guarded.http.post("/v1/completions", json=body, headers=bearer("carol-key"))
    second = guarded.http.post("/v1/completions", json=body, headers=bearer("carol-key"))
    assert (first.status_code, second.status_code) == (200, 429)
    assert int(second.headers["retry-after"]) > 60


def test_keys_do_not_share_prefixes(guarded: RunningServer) -> None:
    body = {"prompt": "k" * 60, "max_tokens": 1}

    def cached(key: str) -> int:
        usage = guarded.http.post("/v1/completions", json=body, headers=bearer(key)).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("the-key") == 0
    assert cached("the-key") > 0
    assert cached("alice-key") == 0
    assert cached("alice-key") > 0


def test_a_key_learns_nothing_of_the_prefixes_of_others(guarded: RunningServer) -> None:
    def reason(key: str, prompt: str, salt: str | None = None) -> str:
        body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt}
        request_id = guarded.http.post("/v1/completions", json=body, headers=bearer(key)).headers["x-request-id"]
        return guarded.http.get(f"/octavo/requests/{request_id}", headers=bearer(key)).json()["prefix"]["reason"]

    guarded.http.post("/v1/completions", json={"prompt": "p" * 60, "max_tokens": 1}, headers=bearer("alice-key"))
    assert reason("the-key", "p" * 60) == reason("the-key", "q" * 60) == "nothing cached continues the prefix"
    assert reason("alice-key", "p" * 60, "mine") == "a longer prefix is cached under another salt"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[keys.a]\n",
        "[keys.a]\nkey = 5\n",
        "[keys.a]\nkey = ''\n",
        "[keys.a]\nkey = 'x'\nfoo = 1\n",
        "[keys.a]\nkey = 'x'\ntokens_per_minute = 0\n",
        "[keys.a]\nkey = 'x'\npriority = true\n",
        "[keys.a]\nkey = 'x'\n[keys.b]\nkey = 'x'\n",
        "not toml",
    ],
)
def test_wrong_key_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_keys(None, str(path))


def test_quota_fills_evenly(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr("octavo.server.keys.time.monotonic", lambda: now)
    quota = Quota(60)
    quota.charge(90)
    assert quota.seconds_until_free() == pytest.approx(31)
    now += 31
    assert quota.seconds_until_free() == 0


@pytest.mark.parametrize(
    ("host", "exposed"), [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("box", True)]
)
def test_exposure_without_a_key_is_noticed(host: str, exposed: bool) -> None:
    assert ServerConfig(host=host).is_exposed_without_key == exposed
    assert not ServerConfig(host=host, api_key="k").is_exposed_without_key
