"""Forks, beam search, retention and pins over HTTP."""

import pytest

from server.running import running_server
from server.scripted import MODEL_NAME, make_engine


def fork(server, request_id, **fields):
    return server.http.post(f"/octavo/requests/{request_id}/fork", json=fields)


def test_an_answer_is_continued_from_inside(server):
    whole = server.complete(prompt="hello", max_tokens=12, request_id="whole").json()["choices"][0]["text"]
    body = fork(server, "whole", at_token=len("hello") + 3, append=" and ", max_tokens=6, return_token_ids=True).json()
    (choice,) = body["choices"]
    assert bytes(choice["prompt_token_ids"]).decode() == "hello" + whole[:3] + " and "
    assert len(choice["token_ids"]) == 6
    assert body["usage"]["prompt_tokens"] == 13
    again = server.complete(prompt="hello" + whole[:3] + " and ", max_tokens=6).json()
    assert again["choices"][0]["text"] == choice["text"]


def test_a_fork_streams_and_has_several_choices(server):
    server.complete(prompt="hello", max_tokens=4, request_id="streamed")
    plain = fork(server, "streamed", max_tokens=5, n=2, append=[65, 66]).json()
    assert len({choice["text"] for choice in plain["choices"]}) == 2
    response = fork(server, "streamed", max_tokens=5, append=[65, 66], stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"at_token": 99}, 400, "at_token"),
        ({"at_token": 0}, 400, "at_token"),
        ({"choice": 1}, 400, "choice"),
        ({"append": [999]}, 400, "append"),
        ({"cache_salt": "x"}, 400, "cache_salt"),
        ({"prompt": "x"}, 400, "prompt"),
    ],
)
def test_what_cannot_be_forked_is_refused_by_name(server, fields, status, param):
    server.complete(prompt="hello", max_tokens=4, request_id="refused")
    response = fork(server, "refused", **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_an_unknown_request_is_not_found(server):
    assert fork(server, "nobody").status_code == 404


def test_a_running_answer_is_forked_and_goes_on():
    with running_server(make_engine(lambda prompt, choice: [65 + len(prompt) % 26] * 400, step_seconds=0.01)) as server:
        request = {"prompt": "hello", "max_tokens": 60, "request_id": "live", "stream": True}
        with server.http.stream("POST", "/v1/completions", json=request) as response:
            lines = response.iter_lines()
            for _ in range(10):
                next(lines)
            branch = fork(server, "live", max_tokens=3).json()
            assert branch["usage"]["prompt_tokens"] > len("hello")
            assert branch["usage"]["prompt_tokens_details"]["cached_tokens"] == branch["usage"]["prompt_tokens"] - 1
            assert sum('"text"' in line for line in lines) > 30


def test_a_key_cannot_fork_another_s_request(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.a]\nkey = "ka"\ncache_percent = 10\n[keys.b]\nkey = "kb"\n')
    with running_server(api_keys=str(keys)) as server:
        headers = {"authorization": "Bearer ka"}
        server.http.post("/v1/completions", json={"prompt": "hi", "request_id": "mine", "max_tokens": 2}, headers=headers)
        path = "/octavo/requests/mine/fork"
        assert server.http.post(path, json={}, headers={"authorization": "Bearer kb"}).status_code == 404
        assert server.http.post(path, json={}, headers=headers).status_code == 200
        server.http.post("/octavo/prefixes", json={"prompt": "x" * 40, "pin": True}, headers=headers)
        assert len(server.http.get("/octavo/prefixes", headers=headers).json()["prefixes"]) == 1
        assert server.http.get("/octavo/prefixes", headers={"authorization": "Bearer kb"}).json()["prefixes"] == []
        long = {"prompt": "y" * 400, "max_tokens": 1}
        server.http.post("/v1/completions", json=long, headers=headers)
        assert server.engine._scheduler.kv._pool.num_cached_of((("tenant", "a"),)) <= 25


# ---- beam search


@pytest.mark.parametrize("fields", [{"n": 3}, {"n": 2, "best_of": 4, "length_penalty": 0.5, "early_stopping": "never"}])
def test_a_beam_search_returns_its_best(server, fields):
    response = server.complete(prompt="hello", max_tokens=6, use_beam_search=True, temperature=0, **fields).json()
    assert [choice["index"] for choice in response["choices"]] == list(range(fields["n"]))
    assert len({choice["text"] for choice in response["choices"]}) == fields["n"]
    assert response["usage"]["completion_tokens"] > 6 * fields["n"] - 6
    chat = server.chat(messages=[{"role": "user", "content": "hi"}], use_beam_search=True, max_tokens=4, **{"n": fields["n"]})
    assert len(chat.json()["choices"]) == fields["n"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        {"logprobs": 1},
        {"temperature": 0.5},
        {"seed": 1},
        {"stop": "a"},
        {"top_p": 0.5},
        {"logit_bias": {"1": 1}},
        {"guided_regex": "a+"},
        {"length_penalty": 11},
        {"early_stopping": "always"},
        {"n": 100},
    ],
    ids=str,
)
def test_what_means_nothing_in_a_beam_search_is_refused(server, fields):
    response = server.complete(**{"prompt": "hello", "use_beam_search": True, "n": 2} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"].split(".")[0] == next(iter(fields))


def test_a_length_penalty_needs_a_beam_search(server):
    assert server.complete(prompt="hello", length_penalty=1.0).json()["error"]["param"] == "length_penalty"


# ---- retention


def test_every_interface_takes_retain(server):
    retain = {"priority": 80, "ttl_s": 5}
    assert server.complete(prompt="hello", retain=[retain], max_tokens=1).status_code == 200
    messages = [{"role": "user", "content": "hi"}]
    assert server.chat(messages=messages, retain=retain, max_tokens=1).status_code == 200
    body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 1, "retain": retain}
    assert server.http.post("/v1/messages", json=body).status_code == 200
    assert server.http.post("/v1/responses", json={"input": "hi", "retain": retain}).status_code == 200
    for wrong in ({"priority": 101}, {}, {"priority": 1, "ttl_s": 0}):
        assert server.complete(prompt="hello", retain=wrong).status_code == 400


def test_a_prefix_is_warmed_pinned_listed_and_released(server):
    prompt = "a prefix that is long enough for some blocks of sixteen tokens each"
    kept = server.http.post("/octavo/prefixes", json={"prompt": prompt, "pin": True, "ttl_s": 60}).json()
    assert kept["num_tokens"] == kept["pinned"]["num_cached_tokens"] == len(prompt)
    assert 0 < kept["pinned"]["seconds_left"] <= 60
    usage = server.complete(prompt=prompt + " and more", max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt)
    listed = server.http.get("/octavo/prefixes").json()
    assert [entry["id"] for entry in listed["prefixes"]] == [kept["pinned"]["id"]]
    assert (listed["num_pinned_blocks"], listed["max_pinned_blocks"]) == (5, 64)
    path = f"/octavo/prefixes/{kept['pinned']['id']}"
    assert server.http.delete(path, params={"cache_salt": "other"}).status_code == 404
    assert server.http.delete(path).json() == {"id": kept["pinned"]["id"], "released": True}
    assert server.http.delete(path).status_code == 404


def test_a_prefix_is_only_warmed_unless_it_is_to_be_pinned(server):
    messages = [{"role": "user", "content": "warm this up, please"}]
    warmed = server.http.post("/octavo/prefixes", json={"messages": messages, "retain": {"priority": 60}}).json()
    assert warmed["pinned"] is None
    chat = server.chat(messages=messages, max_tokens=1).json()
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == warmed["num_tokens"] - 1
    assert server.http.post("/octavo/prefixes", json={"prompt": "a", "ttl_s": 3}).json()["error"]["param"] == "ttl_s"
    for body in ({"pin": True}, {"prompt": []}, {"prompt": ""}, {"prompt": [260]}, {"prompt": "a", "messages": messages}):
        refused = server.http.post("/octavo/prefixes", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt"), refused.text
    too_long = server.http.post("/octavo/prefixes", json={"prompt": "z" * 600, "pin": True})
    assert too_long.status_code == 400 and "max_model_len=512" in too_long.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/octavo/prefixes", "/tokenize"])
@pytest.mark.parametrize(("name", "value"), [("add_generation_prompt", False), ("chat_template_kwargs", {"mood": "calm"})])
def test_a_prompt_takes_no_field_of_a_conversation(server, path, name, value):
    refused = server.http.post(path, json={"prompt": "a", name: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == f"{name} is allowed only with messages"


def test_more_than_the_pins_share_is_refused():
    with running_server(make_engine(num_blocks=40)) as server:
        response = server.http.post("/octavo/prefixes", json={"prompt": "z" * 400, "pin": True})
        assert response.status_code == 400
        assert "25 % of the pool's 40 blocks" in response.json()["error"]["message"]
