"""Variables under which an engine that a user starts on CPU has the graph double, and mutations."""

from __future__ import annotations

import os
from pathlib import Path

from tests.draft_graphs.package_copies import HOOKED, PACKAGE
from tests.support.code_edits import Edit, edited

SITE = Path(__file__).resolve().parent / "double_site"
TESTS = SITE.parents[1]
#: vLLM's arguments with which a target on CPU has the modes that a GPU's has.
ARGUMENTS = ("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}')


def double_environment(folder: Path, mutated: Path | None = None) -> dict[str, str]:
    """This process's variables and those of the double.

    :param folder: an empty one, for an import path.
    :param mutated: what ``write_mutated`` wrote.
    """
    (folder / "tests").symlink_to(TESTS, target_is_directory=True)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")},
        "PYTHONPATH": f"{SITE}{os.pathsep}{folder}",
        "TEST_DOUBLE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    return variables if mutated is None else {**variables, "TEST_MUTATED": str(mutated)}


def write_mutated(site: Path, changes: tuple[Edit, ...], folder: Path) -> Path:
    """Write the modules that a mutation changes, as ``double_site`` reads them.

    :param site: the folder that holds a patched vLLM.
    :raises EditError: if an edit does not fit its file.
    """
    folder.mkdir()
    texts: dict[str, str] = {}
    for file, *edit in changes:
        parent = PACKAGE.rpartition(".")[0] if file == HOOKED else PACKAGE
        name = f"{parent}.{file.removesuffix('.py')}"
        source = site / f"{name.replace('.', '/')}.py"
        text = texts.get(name) or source.read_text(encoding="utf-8")
        texts[name] = edited(text, [edit], file)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder
