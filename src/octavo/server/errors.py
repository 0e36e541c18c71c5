"""Errors as HTTP shows them, in the form that OpenAI's clients read.

Owns: the mapping from causes to statuses and to ``{"error": {"message", "type", "param", "code"}}``, in Anthropic's form on its
path. Must not know: routes.

Invariants:
1. A client's fault is 400, 401, 404, 405, 413 or 429, ours is 500 or 503; 422 is never sent.
2. No message repeats more than `MAX_QUOTED_CHARS` of what a client sent.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from octavo.errors import CapacityError, OctavoError, RequestError, SnapshotError, StallError

MAX_QUOTED_CHARS = 200
_KINDS = {  # status -> (type, code)
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: ("invalid_request_error", "body_too_large"),
    429: ("rate_limit_error", "queue_full"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "unavailable"),
}
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}  # where its interface has words of its own
_OTHER_KIND = ("invalid_request_error", "invalid_value")


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: the HTTP status.
        param: the request's field at fault, as a path such as ``messages[0].content``.
        code: a word for programs; one that follows from the status if not given.
        retry_after_seconds: when it makes sense to try again, for 429 and 503.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after_seconds: float = 1.0
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.type, usual_code = _KINDS.get(status, _OTHER_KIND)
        self.code = code or usual_code
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        """Returns the JSON body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """Returns the JSON body as Anthropic's clients read it; `param` and `code` are ours."""
        error = self.body()["error"]
        return {"type": "error", "error": {**error, "type": _ANTHROPIC_TYPES.get(self.status, error["type"])}}

    def response(self, path: str) -> JSONResponse:
        """Returns the HTTP answer to a request for a path; a client that may try again is told when."""
        headers = {}
        if self.status in (429, 503):
            headers["Retry-After"] = str(math.ceil(self.retry_after_seconds))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        is_anthropic = path.startswith(ANTHROPIC_PATH)
        return JSONResponse(self.anthropic_body() if is_anthropic else self.body(), self.status, headers)


def invalid(param: str, message: str) -> ApiError:
    """Returns the refusal of one field."""
    return ApiError(400, message, param=param)


def as_api_error(error: OctavoError) -> ApiError:
    """Returns what a client is told of an error of the engine."""
    message = _shortened(str(error), 10 * MAX_QUOTED_CHARS)
    if isinstance(error, RequestError):
        return ApiError(400, message, param=error.field)
    if isinstance(error, CapacityError):
        return ApiError(429, message) if error.may_fit_later else ApiError(400, message, code="too_large")
    if isinstance(error, SnapshotError):
        return ApiError(400, message, code="session_refused")
    return ApiError(500, message, code="stalled" if isinstance(error, StallError) else "internal_error")


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Lets the refusal of a field name it as the request does.

    Args:
        names: the request's name for a field, by the name that the field has further inside.
    """
    try:
        yield
    except (ApiError, RequestError) as cause:
        error = cause if isinstance(cause, ApiError) else as_api_error(cause)
        inner = error.param or ""
        name = names.get(re.split(r"[.\[]", inner)[0])
        if name is None:
            raise
        message = re.sub(rf"^{re.escape(inner)}(?= )|\b{re.escape(inner)}(?==)", name, error.message)
        raise ApiError(error.status, message, param=name, code=error.code) from cause


def install_handlers(app: FastAPI) -> None:
    """Makes every foreseen error that leaves a route an answer in this form; the gate sees to the others."""

    @app.exception_handler(ApiError)
    async def _api_error(request: Request, error: ApiError) -> JSONResponse:
        return error.response(request.url.path)

    @app.exception_handler(OctavoError)
    async def _octavo_error(request: Request, error: OctavoError) -> JSONResponse:
        return as_api_error(error).response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def _validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return describe_validation(error.errors(), error.body).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        response = ApiError(error.status_code, _http_message(request, error)).response(request.url.path)
        response.headers.update(error.headers or {})
        return response


def _http_message(request: Request, error: HTTPException) -> str:
    path = _shortened(request.url.path, MAX_QUOTED_CHARS)
    if error.status_code == 404:
        return f"there is no path {path}; /docs lists those that there are"
    if error.status_code == 405:
        return f"{path} does not take {request.method}; it takes {(error.headers or {}).get('Allow', 'other methods')}"
    return str(error.detail)


def describe_validation(errors: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Returns the refusal that names the first field at fault, as deep inside it as the fault can be placed."""
    if isinstance(body, bytes):
        return ApiError(400, "the body must be JSON, sent with Content-Type: application/json", code="invalid_json")
    located = [(_field_path(error, body), error) for error in errors]
    same_field = [item for item in located if item[0][:1] == located[0][0][:1]]
    steps, error = max(same_field, key=lambda item: len(item[0]))
    path = _written_path(steps)
    if error["type"] == "extra_forbidden":
        return ApiError(400, f"{path} is no field of this request", param=path, code="unknown_field")
    if error["type"] == "missing":
        return ApiError(400, f"{path or 'the JSON body'} is missing", param=path or None, code="missing_field")
    found = _shortened(repr(error.get("input")), MAX_QUOTED_CHARS)
    return ApiError(400, f"{path or 'the body'}={found} is not allowed: {error['msg']}", param=path or None)


def _field_path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """Returns the path of a field in the body; steps that pydantic adds to tell alternatives apart are left out."""
    path: list[str | int] = []
    value = body
    location = error["loc"][1:]
    for step in location:
        is_key = isinstance(value, dict) and step in value
        if is_key or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            path.append(step)
            value = value[step]
        elif error["type"] == "missing" and step == location[-1]:
            path.append(step)
    return path


def _written_path(steps: Sequence[str | int]) -> str:
    """Returns a path as in ``messages[0].content``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _shortened(text: str, limit: int) -> str:
    # Half a surrogate pair cannot be sent as UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
