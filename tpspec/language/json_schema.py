"""The spec language as a JSON schema, each key with the sentence that its model gives it."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from tpspec.language import schema


def json_schema() -> dict[str, Any]:
    """The JSON schema of a spec file."""
    made = schema.SpecDocument.model_json_schema(by_alias=True)
    made["title"] = "tpspec spec"
    for name, documented in _sentences().items():
        fields = getattr(schema, name).model_fields
        properties = (made["$defs"].get(name) or made)["properties"]
        for field, sentence in documented.items():
            properties[fields[field].alias or field]["description"] = sentence
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _sentences() -> dict[str, dict[str, str]]:
    """Model → field → the docstring that stands under the field.

    pydantic can read them too, but only while it makes the classes, which every command waits for.
    """
    classes = [node for node in ast.parse(inspect.getsource(schema)).body if isinstance(node, ast.ClassDef)]
    found: dict[str, dict[str, str]] = {}
    for node in classes:
        for field, below in pairwise(node.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(node.name, {})[name] = inspect.cleandoc(text)
    return found
