"""Writes the page about the HTTP interface from the server's OpenAPI document.

Owns: the page's form. Must not know: routes; whatever the document has is on the page.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from markdown_table import table

Schema = Mapping[str, Any]

INTRO = """# HTTP interface

What `octavo serve` answers, from its own OpenAPI document (`/openapi.json`; `/docs` shows it in a browser). A field that is not
here is refused by name, and so is a value of another type: nothing is accepted and ignored. `null` means the default. Sampling
fields are explained with the [sampling parameters](sampling.md).

Errors have the form `{"error": {"message", "type", "param", "code"}}`:

"""


def http_page(document: Schema, field_meanings: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
        document: the OpenAPI document.
        field_meanings: what fields mean for which the document has no text.
    """
    schemas = document["components"]["schemas"]
    operations = list(_operations(document))
    errors = {status: text for _, _, operation in operations for status, text in _errors(operation)}
    lines = [INTRO, table(("status", "meaning"), sorted(errors.items()))]
    for method, path, operation in operations:
        lines.append(f"\n## {method} {path}\n\n{operation['description'].strip()}\n")
        lines.append(_describe_operation(operation))
    lines.append("\n# Bodies\n")
    for name, schema in sorted(schemas.items()):
        lines.append(f"\n## {name}\n\n{schema.get('description', '').strip()}\n")
        if "properties" in schema:
            lines.append("\n" + _field_table(schema, field_meanings))
        else:
            lines.append(f"\n{_type_text(schema)}\n")
    return "".join(lines)


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _errors(operation: Schema) -> Iterator[tuple[str, str]]:
    for status, response in operation["responses"].items():
        if status != "200":
            yield status, response["description"]


def _describe_operation(operation: Schema) -> str:
    lines = []
    for place in ("path", "query"):
        names = [f"`{parameter['name']}`" for parameter in operation.get("parameters", ()) if parameter["in"] == place]
        if names:
            lines.append(f"\nIn the {place}: {', '.join(names)}.\n")
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        lines.append(f"\nBody: {_type_text(content['schema'])}.\n")
    answers = [
        _type_text(content["schema"]) if media_type == "application/json" else f"`{media_type}`"
        for media_type, content in operation["responses"]["200"]["content"].items()
    ]
    return "".join(lines) + f"\nAnswer: {' or '.join(answers)}.\n"


def _field_table(schema: Schema, meanings: Mapping[str, str]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        meaning = field.get("description") or (meanings.get(name, "") if "default" not in field else "")
        rows.append((f"`{name}`" + (" (required)" if name in required else ""), _type_text(field), " ".join(meaning.split())))
    return table(("field", "type", "meaning"), rows)


def _type_text(schema: Schema) -> str:
    """Returns a JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            parts = [part for part in schema[key] if part.get("type") != "null"]
            return " or ".join(dict.fromkeys(map(_type_text, parts))) or "null"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of ({_type_text(schema['items'])})" if schema.get("items") else "list"
    return str(schema.get("type", "any value"))
