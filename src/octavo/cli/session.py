"""``octavo session``: saved conversations of a running server.

Owns: the options and what is printed. Must not know: how sessions are saved.
"""

import json
from datetime import datetime
from typing import IO, Any

import click

from octavo.errors import OctavoError

SECONDS_PER_CALL = 600.0  # a long conversation is computed before it is saved


@click.group("session")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of a running Octavo server.")
@click.option("--api-key", default="none", help="Key to send.")
@click.option("--cache-salt", default=None, help="Salt of the conversation, if it has one.")
@click.pass_context
def command(context: click.Context, url: str, api_key: str, cache_salt: str | None) -> None:
    """Save conversations of a server that runs with --session-dir, and load them again."""
    context.obj = SessionClient(url, api_key, cache_salt)


@command.command("save")
@click.argument("name")
@click.option("--prompt", default=None, help="The conversation as a text.")
@click.option("--messages", type=click.File(), default=None, help="File with the messages of a chat, as JSON; - is standard input.")
@click.pass_obj
def save(client: "SessionClient", name: str, prompt: str | None, messages: IO[str] | None) -> None:
    """Save a conversation under NAME; what of it is not in memory is computed first."""
    if (prompt is None) == (messages is None):
        raise click.UsageError("give either --prompt or --messages")
    conversation = {"prompt": prompt} if messages is None else {"messages": _read_messages(messages)}
    _print_result("saved", client.post(name, "save", conversation))


@command.command("load")
@click.argument("name")
@click.pass_obj
def load(client: "SessionClient", name: str) -> None:
    """Bring the session NAME back into the server's memory."""
    _print_result("loaded", client.post(name, "load", {}))


@command.command("list")
@click.pass_obj
def list_sessions(client: "SessionClient") -> None:
    """List the saved sessions."""
    for session in client.list():
        saved_at = datetime.fromtimestamp(session["saved_at"]).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{session['name']}  {session['num_tokens']} tokens  {session['num_bytes'] / 2**20:.1f} MiB  {saved_at}")


class SessionClient:
    """Talks with one server."""

    def __init__(self, url: str, api_key: str, cache_salt: str | None):
        self._url = f"{url}/octavo/sessions"
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._salt = {} if cache_salt is None else {"cache_salt": cache_salt}

    def post(self, name: str, action: str, conversation: dict[str, Any]) -> dict[str, Any]:
        """Saves or loads a session."""
        return self._send("POST", body={"name": name, "action": action, **conversation, **self._salt})

    def list(self) -> list[dict[str, Any]]:
        """Returns the sessions that the server lists."""
        return self._send("GET", query=self._salt)["sessions"]

    def _send(self, method: str, *, body: dict[str, Any] | None = None, query: dict[str, str] | None = None) -> dict[str, Any]:
        import httpx

        try:
            response = httpx.request(method, self._url, headers=self._headers, timeout=SECONDS_PER_CALL, json=body, params=query)
            answer = response.json()
        except (httpx.HTTPError, ValueError) as cause:
            raise OctavoError(f"{self._url} does not answer as a server: {cause}", hint="start one: octavo serve") from cause
        if response.status_code != 200:
            raise OctavoError(answer["error"]["message"])
        return answer


def _read_messages(file: IO[str]) -> Any:
    try:
        return json.load(file)
    except ValueError as cause:
        raise click.UsageError(f"--messages is not JSON: {cause}") from cause


def _print_result(done: str, result: dict[str, Any]) -> None:
    click.echo(
        f"{done} {result['name']}: {result['num_tokens']} tokens, {result['num_cached_tokens']} of them in memory, "
        f"{result['num_bytes'] / 2**20:.1f} MiB"
    )
