"""The JSON schemas of docs/schemas, and whether a value keeps to one: the part of JSON Schema that they use."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
SAID = {"$schema", "$id", "title", "description"}
KNOWN = SAID | {"type", "enum", "properties", "required", "additionalProperties", "items"}


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema of a command's output or of a file."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def problems(value: Any, rules: dict[str, Any], where: str = "$") -> list[str]:
    """What is wrong with a value."""
    assert set(rules) <= KNOWN, set(rules) - KNOWN
    kinds = rules.get("type", list(KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        return [f"{where}: {value!r:.60} is not of type {kinds}"]
    if "enum" in rules and value not in rules["enum"]:
        return [f"{where}: {value!r} is none of {rules['enum']}"]
    if isinstance(value, list):
        rule = rules.get("items", {})
        return [problem for index, item in enumerate(value) for problem in problems(item, rule, f"{where}[{index}]")]
    if not isinstance(value, dict):
        return []
    fields: dict[str, Any] = rules.get("properties", {})
    told = [f"{where}.{name}: is missing" for name in rules.get("required", []) if name not in value]
    for name, item in value.items():
        rule = fields.get(name, rules.get("additionalProperties", {}))
        if rule is False:
            told.append(f"{where}.{name}: is in no schema")
        else:
            told += problems(item, rule, f"{where}.{name}")
    return told


def check(value: Any, name: str) -> None:
    """Fails if a value does not keep to its schema."""
    assert problems(value, schema(name)) == []
