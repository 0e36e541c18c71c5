"""Fields that say what form an answer must have.

Owns: OpenAI's ``response_format`` and vLLM's fields, and the grammar that each means. Must not know: how it is enforced.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.engine.grammar import Grammar, json_grammar
from octavo.server.errors import ApiError, invalid
from octavo.server.protocol.base import GenerationFields, Name, RequestBody

JsonSchema = dict[str, Any]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)]
ANY_OBJECT: JsonSchema = {"type": "object"}


class TextFormat(RequestBody):
    """The answer is plain text."""

    type: Literal["text"]


class JsonObjectFormat(RequestBody):
    """The answer is a JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestBody):
    """A schema; with `strict` or without, answers fit it."""

    name: Name
    description: str | None = None
    schema_: JsonSchema | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(RequestBody):
    """The answer is a JSON document that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(RequestBody):
    """vLLM's object for what an answer must be; one of its fields is given."""

    json_: JsonSchema | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = Field(None, description="In the notation of Lark or of GBNF.")


class StructuredFields(GenerationFields):
    """The fields that say what form an answer must have; at most one of them is given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = Field(None, description="In the notation of Lark or of GBNF.")

    def grammar(self) -> Grammar | None:
        """Returns what answers must follow, if anything.

        Raises:
            ApiError: several fields say it, or another field would cut the document.
        """
        grammars = [*_of_format(self.response_format), *_of_outputs(self.structured_outputs), *self._guided()]
        if len(grammars) > 1:
            raise invalid(grammars[1].field, f"{grammars[1].field} is not allowed together with {grammars[0].field}")
        grammar = grammars[0] if grammars else None
        if grammar is not None and grammar.kind == "json":
            self.check_whole(grammar)
        return grammar

    def _guided(self) -> list[Grammar]:
        return [
            *_of_schema(self.guided_json, "guided_json"),
            *_of_texts({"regex": self.guided_regex, "choice": self.guided_choice, "grammar": self.guided_grammar}, "guided_"),
        ]

    def check_whole(self, grammar: Grammar) -> None:
        """Refuses fields that would end an answer before its grammar does."""
        for name in ("stop", "stop_token_ids"):
            if getattr(self, name):
                raise invalid(name, f"{name} is not allowed with {grammar.field}: it would cut the answer short")


def _of_format(response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> list[Grammar]:
    if isinstance(response_format, JsonObjectFormat):
        return [json_grammar(ANY_OBJECT, "response_format")]
    if isinstance(response_format, JsonSchemaFormat):
        return [json_grammar(response_format.json_schema.schema_ or ANY_OBJECT, "response_format")]
    return []


def _of_outputs(outputs: StructuredOutputs | None) -> list[Grammar]:
    if outputs is None:
        return []
    found = [
        *_of_schema(outputs.json_, "structured_outputs.json"),
        *_of_texts({"regex": outputs.regex, "choice": outputs.choice, "grammar": outputs.grammar}, "structured_outputs."),
    ]
    return [*found, json_grammar(ANY_OBJECT, "structured_outputs.json_object")] if outputs.json_object else found


def _of_schema(schema: JsonSchema | str | None, field: str) -> list[Grammar]:
    if isinstance(schema, str):
        schema = _read_schema(schema, field)
    return [] if schema is None else [json_grammar(schema or ANY_OBJECT, field)]


def _read_schema(text: str, field: str) -> JsonSchema:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"{field} is no JSON: {error}", param=field) from error
    if not isinstance(schema, dict):
        raise invalid(field, f"{field} must be a JSON object")
    return schema


def _of_texts(fields: dict[Literal["regex", "choice", "grammar"], Any], prefix: str) -> list[Grammar]:
    return [
        Grammar(kind, json.dumps(value) if kind == "choice" else value, prefix + kind)
        for kind, value in fields.items()
        if value is not None
    ]
