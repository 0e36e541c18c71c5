"""``/v1/models``.

Owns: the description of the model. Must not know: requests.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends

from octavo.server.context import ServerContext, get_context
from octavo.server.protocol.base import ERROR_RESPONSES, ResponseBody
from octavo.server.served_model import ServedModel

router = APIRouter(tags=["models"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]


class ModelCard(ResponseBody):
    """One model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["octavo"] = "octavo"
    max_model_len: int


class ModelList(ResponseBody):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/v1/models")
async def list_models(context: Context) -> ModelList:
    """Returns the one model that is served."""
    return ModelList(data=[_card(context.model)])


@router.get("/v1/models/{name:path}")
async def get_model(name: str, context: Context) -> ModelCard:
    """Returns the model of a name."""
    context.model.check_name(name)
    return _card(context.model)


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.name, created=model.created, max_model_len=model.max_model_len)
