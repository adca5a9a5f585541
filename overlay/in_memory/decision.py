"""What a process decided, as its receipt keeps it: by which facts, on which files, and what."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import overlay
from overlay.cache import cache_folder
from overlay.errors import OverlayError
from overlay.in_memory import receipt
from overlay.in_memory.activation import Activation, FeatureStanding
from overlay.in_memory.patch_folders import patches_folders
from overlay.package import LEDGER_PATH, STATE_FOLDER
from overlay.results import State
from overlay.settings import Switches

#: The fields of an activation that a receipt keeps; it holds none that hooks a module.
_KEPT = ("way", "vllm", "root", "digest", "warnings", "required")


class Decision:
    """The decision of a process with this environment on the vLLM that it has imported.

    :param root: the folder that holds ``vllm/``.
    """

    def __init__(self, asked: Switches, root: Path, version: str) -> None:
        self._root = root
        self._began = time.time()
        self._folders = [os.path.abspath(folder) for folder in patches_folders(asked)]
        self._cache = cache_folder() / "receipts"
        self._name = receipt.name_of(
            {
                "overlay": [overlay.__version__, os.path.realpath(overlay.__file__)],
                "python": [sys.hexversion, sys.implementation.name, sys.flags.optimize],
                "vllm": [version, str(root)],
                "variables": dict(asked.all),
                "folders": self._folders,
            }
        )

    def read(self) -> Activation | None:
        """The activation that an earlier process came to, ``None`` where this one has to decide."""
        kept = receipt.read(self._cache, self._name)
        if kept is None:
            return None
        try:
            return _activation(kept)
        except (KeyError, TypeError, ValueError):
            return None

    def write(self, activation: Activation) -> None:
        """Keep an activation for the next process, where it rests on files alone.

        A cache that cannot be written costs the next process its time, and nothing else.
        """
        if activation.inputs is None or activation.modules:
            return
        files = {str(self._root / path): digest for path, digest in activation.inputs.items()}
        with contextlib.suppress(OSError, OverlayError, RuntimeError):
            for path in self._further():
                files.update(receipt.hashes([str(path)]))
            kept = {name: getattr(activation, name) for name in _KEPT}
            features = [
                [each.id, each.digest, each.state.value, each.active, each.why, each.asked]
                for each in activation.features
            ]
            receipt.write(
                self._cache,
                self._name,
                {**kept, "features": features},
                files,
                self._folders,
                self._began,
            )

    def _further(self) -> list[Path]:
        """What every decision rests on: the ledger, a journal, and which release it is."""
        installed = sorted(self._root.glob("vllm*.dist-info/METADATA"))
        state = [self._root / LEDGER_PATH, self._root / STATE_FOLDER / "journal.json"]
        return [*state, self._root / "vllm/_version.py", *installed]


def of_imported(asked: Switches) -> Decision | None:
    """The decision on the vLLM that this process has imported; ``None`` before it did."""
    vllm = sys.modules.get("vllm")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    root = Path(os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(file)))))
    try:
        return Decision(asked, root, str(getattr(vllm, "__version__", "")))
    except (OverlayError, RuntimeError):  # no shipped patches, or no home folder
        return None


def _activation(kept: Mapping[str, Any]) -> Activation:
    features = tuple(
        FeatureStanding(str(name), str(digest), State(state), active is True, why, asked is True)
        for name, digest, state, active, why, asked in kept["features"]
    )
    return Activation(
        way=str(kept["way"]),
        vllm=str(kept["vllm"]),
        root=str(kept["root"]),
        features=features,
        digest=str(kept["digest"]),
        warnings=tuple(map(str, kept["warnings"])),
        required=kept["required"] is True,
    )
