"""The JSON Schema of the settings file, for editors: `python -m otelgpu.config.schema FILE`.

Rule 1: it follows from the structs of the settings, and limits and choices are msgspec's own schema of each type.
Rule 2: what it takes and refuses is what otelgpu does, of values in their usual spelling: of a number in quotes, which
        otelgpu takes too, an editor may complain. What only a parser can judge (an address, a field) is any text.
Rule 3: a text may be written as anything that YAML reads as one value (`hostname: 7`), and each key may stand empty.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from otelgpu.config.keys import SETTINGS, Setting, Shape, leaf_kind
from otelgpu.config.values import SECONDS

_VERSION = "http://json-schema.org/draft-07/schema#"  # the newest one that editors know in full
_TEXT = ["string", "number", "boolean"]
_SECONDS = {"type": "string", "pattern": f"^\\+?(?:{SECONDS.pattern})$"}
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "type", "enum")

Json = dict[str, Any]


def schema() -> Json:
    """Make the schema of the whole file."""
    top: Json = {}
    for setting in SETTINGS.values():
        section, _, name = setting.key.rpartition(".")
        if section and section not in top:
            top[section] = _object({}, description=setting.group, type=["object", "null"])
        (top[section]["properties"] if section else top)[name] = _of(setting)
    return {"$schema": _VERSION, "title": "Settings of otelgpu", **_object(top, type="object")}


def schema_text() -> str:
    """Write the schema as a file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


def _object(properties: Json, **more: object) -> Json:
    return {**more, "properties": properties, "additionalProperties": False}


def _of(setting: Setting) -> Json:
    leaf, null = _leaf(setting), {"type": "null"}
    match setting.shape:
        case Shape.ONE:
            forms = [leaf]
        case Shape.LIST:  # one text is split at its commas
            forms = [{"type": _TEXT}, {"type": "array", "items": leaf, "minItems": 1}]
        case Shape.MAPPING:
            forms = [{"type": "object", "additionalProperties": {"type": [*_TEXT, "null"]}}]
    if leaf_kind(setting) is float and setting.parse is None:
        forms.append(_SECONDS)
    about: Json = {"description": setting.meaning, "anyOf": [*forms, null]}
    return about | ({} if setting.default is None else {"default": _written(setting.default)})


def _leaf(setting: Setting) -> Json:
    if setting.parse is not None or leaf_kind(setting) is str:
        return {"type": _TEXT}
    made = msgspec.json.schema(setting.leaf)
    found = {name: made[name] for name in _LIMITS if name in made}
    if "enum" in found:
        found["enum"] = [form for word in found["enum"] for form in _forms(word)]
    return found


def _forms(word: str) -> list[str | float]:
    """Give a word, and what an editor takes it for where it looks like a number: 4.9."""
    try:
        return [word, float(word)]
    except ValueError:
        return [word]


def _written(default: object) -> object:
    if isinstance(default, tuple):
        return [str(entry) for entry in default]
    return default if isinstance(default, bool | int | float | str | dict) else str(default)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
