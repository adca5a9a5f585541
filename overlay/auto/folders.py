"""Where a process looks for features, and what it can tell of them without reading them.

Apart from what plans, because each process of vLLM asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overlay import shipped

if TYPE_CHECKING:
    from overlay.auto.switches import Switches

#: Why a feature is not patched that ``OVERLAY_FEATURES`` leaves out.
NOT_ASKED = "OVERLAY_FEATURES does not name it"


def patches_folders(switches: Switches) -> list[Path]:
    """The folders of features that this process looks into."""
    return [shipped.shipped_folder(), *switches.patches]


def required_features(switches: Switches) -> frozenset[str]:
    """The ids of the features whose own feature.toml says that vLLM must not start without them.

    Looks into no file but those that hold the word, since each process asks.
    """
    found = set()
    for folder in patches_folders(switches):
        for document in folder.glob("*/feature.toml"):
            if any(map(_names_required, document.read_bytes().splitlines())):
                from overlay.features import load

                found |= {feature.id for feature in load([folder]) if feature.required}
                break
    return frozenset(found)


def _names_required(line: bytes) -> bool:
    """Whether a line of a feature.toml may set ``required``."""
    return line.partition(b"=")[0].strip(b" \t\"'") == b"required"
