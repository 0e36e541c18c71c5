"""The OpenAPI document.

Owns: what is taken out of it. Must not know: routes.
"""

from typing import Any

from fastapi import FastAPI

UNUSED_SCHEMAS = ("HTTPValidationError", "ValidationError")


class Api(FastAPI):
    """An application whose document says what it does: FastAPI would announce 422, which is never sent."""

    def openapi(self) -> dict[str, Any]:
        """Returns the document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for operations in document["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for name in UNUSED_SCHEMAS:
                document["components"]["schemas"].pop(name, None)
        return super().openapi()
