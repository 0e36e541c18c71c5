"""The server's settings, declared as the engine's are.

Owns: every setting's default and description; `octavo serve` makes its flags of these fields. Must not know: what they lead to.
"""

import ipaddress
from dataclasses import dataclass

from octavo.config import check_fields, setting
from octavo.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """All settings of the HTTP server."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", minimum=0)
    served_model_name: str | None = setting(None, "Name that clients use for the model; the model's own name if not given.")
    api_key: str | None = setting(None, "Key that clients must send; none is asked for if not given.")
    api_keys: str | None = setting(None, "TOML file with one table per key: its namespace, priority and quotas.")
    allowed_origins: tuple[str, ...] = setting((), "Web origin whose pages may call the server; may be given several times.")
    max_requests: int = setting(1024, "Most prompts in the server at once, running or waiting; more are answered 429.", minimum=1)
    max_body_bytes: int = setting(8 * 2**20, "Largest request body.", unit="bytes", minimum=1)
    max_prompts: int = setting(256, "Most prompts of one request.", minimum=1)
    max_choices: int = setting(16, "Largest n and best_of.", minimum=1)
    max_logprobs: int = setting(20, "Most alternatives per token in logprobs.", minimum=0)
    max_stop_strings: int = setting(16, "Most stop strings, and most bad words, of one request.", minimum=1)
    max_grammar_bytes: int = setting(2**16, "Largest JSON schema, expression or grammar.", unit="bytes", minimum=1)
    max_grammar_depth: int = setting(64, "Deepest nesting of brackets in one of those.", minimum=1)
    max_compile_seconds: int = setting(5, "One that takes longer to compile is refused.", unit="seconds", minimum=1)
    max_request_seconds: int = setting(600, "A request that takes longer ends with what it has.", unit="seconds", minimum=1)
    max_lag_tokens: int = setting(
        1024, "A stream is dropped when more tokens than these wait for its reader.", unit="tokens", minimum=1
    )
    session_dir: str | None = setting(None, "Directory of saved sessions; none can be saved or loaded if not given.")
    read_seconds: int = setting(30, "A client that takes longer to send its request is cut off.", unit="seconds", minimum=1)
    drain_seconds: int = setting(30, "On SIGTERM, requests may go on for this long.", unit="seconds", minimum=0)
    idle_release: int | None = setting(
        None,
        "After so long without a request, the pages of cached KV blocks go back to the system, all but 64 MiB of the latest; "
        "never if not given.",
        unit="seconds",
        minimum=1,
    )
    stall_timeout: int = setting(
        60,
        "If work waits and nothing runs for so long, what the engine holds goes to the log, the request in the way fails, and the "
        "server is not ready until something runs again.",
        unit="seconds",
        minimum=1,
    )
    log_json: bool = setting(False, "Write the access log as JSON, one object per line.")
    otlp_endpoint: str | None = setting(
        None, "Collector that gets a trace of each request, e.g. http://127.0.0.1:4318; needs octavo[otel]."
    )
    log_prompts: bool = setting(False, "Write prompts and answers to the access log.")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.port > 65535:
            raise ConfigError(f"port={self.port} is not a port: the highest is 65535")
        if self.api_key == "":
            raise ConfigError("api_key is empty", hint="leave it out to serve without a key")

    @property
    def is_exposed_without_key(self) -> bool:
        """True when machines other than this one can reach the server and no key keeps them out."""
        if self.api_key or self.api_keys or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True
