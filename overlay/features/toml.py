"""Parse TOML that a stranger may have written: a feature's, a project's, a session's document.

The parser is imported only where something is parsed: processes of vLLM that have a receipt parse
nothing.
"""

from __future__ import annotations

import re
import sys
from typing import Any

#: More dotted parts of a key than anybody writes; the parser takes time with their square.  Each
#: word is looked at once, so that a long text costs as little as it can.
_DEEP_KEY = r"""(?<![\w"'.-])(?:[\w"'-]+[ \t]*\.[ \t]*){64}"""


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a document of TOML is.

    :raises ValueError: if it is not TOML, also where it is nested too deeply to be parsed, or holds
        a number that Python does not read; with ``at line N`` where that is known.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if (deep := re.search(_DEEP_KEY, text)) is not None:
        line = text.count("\n", 0, deep.start()) + 1
        raise ValueError(f"a key has too many parts (at line {line})")
    table: dict[str, Any]
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    return table
