"""JSON in and out.

Owns: how a body is read and written. Must not know: what is in it.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException


class JsonRequest(Request):
    """A request whose body is strict JSON: no NaN, no half surrogate pairs, at most 200 levels deep (the parser's limit)."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from error


class JsonRoute(APIRoute):
    """A route that reads its body that way."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def json_response(body: BaseModel) -> Response:
    """Returns a body that is known to have the declared form."""
    return Response(body.model_dump_json(), media_type="application/json")
