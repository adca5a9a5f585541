#!/usr/bin/env python3
"""Write docs/appendix/json-keys.md, every key of the JSON, from the schema in the package.

render_json_keys.py            rewrite the page
render_json_keys.py --check    exit with 1 if it is not what the schema says
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "overlay/report/schema-2.json"
PAGE = ROOT / "docs/appendix/json-keys.md"
TOP = """<!-- Written by scripts/render_json_keys.py; a test compares. -->
# JSON: every key

From the [schema](../../overlay/report/schema-2.json) of [JSON for scripts](../json.md). `[]`
is an entry of a list, `<key>` any key of a mapping.
"May lack": the key is left out where there is nothing to say.
"""

Schema = Mapping[str, Any]


def type_of(schema: Schema) -> str:
    """What a value is, in words; a reference is a link to its section."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return "the document" if reference == "#" else f"[{name}](#{name.replace('_', '-')})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(type_of(each) for each in schema[choice]))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{'null' if value is None else value}`" for value in schema["enum"])
    kinds = schema.get("type", "anything")
    words = [kinds] if isinstance(kinds, str) else list(kinds)
    if "array" in words and isinstance(schema.get("items"), Mapping):
        words[words.index("array")] = f"list of {type_of(schema['items'])}"
    return " or ".join(words)


def rows_of(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Each key below a schema: its path, what describes it, and whether it may lack."""
    for choice in ("anyOf", "oneOf"):
        for each in schema.get(choice, ()):
            yield from rows_of(each, path)
    if isinstance(items := schema.get("items"), Mapping):
        yield from rows_of(items, f"{path}[]")
    if isinstance(others := schema.get("additionalProperties"), Mapping):
        yield from rows_of(others, f"{path}.<key>")
    for key, value in schema.get("properties", {}).items():
        place = f"{path}.{key}".lstrip(".")
        yield place, value, key not in schema.get("required", ())
        yield from rows_of(value, place)


def table(schema: Schema) -> list[str]:
    """The table of the keys below a schema."""
    lines = ["| key | type | what it is |", "|---|---|---|"]
    for path, value, lacks in rows_of(schema):
        text = " ".join(str(value.get("description", "")).split()).replace("|", "\\|")
        words = [text.replace("<module>", "`<module>`")] if text else []
        words += ["May lack."] if lacks else []
        lines.append(f"| `{path}` | {type_of(value)} | {' '.join(words)} |")
    return lines


def page() -> str:
    """The whole page."""
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    parts = [TOP, "## document", "", *table(document)]
    for name, part in document["$defs"].items():
        parts += ["", f"## {name.replace('_', '-')}", ""]
        if text := part.get("description"):
            parts += [text, ""]
        if any(rows_of(part)):
            parts += table(part)
        elif name == "code":
            parts += ["[Each code, with its exit status](../json.md#codes)."]
        else:
            parts += [f"{type_of(part)}."]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Rewrite or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
