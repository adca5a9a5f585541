"""Several copies of the draft graphs' package in one process, each changed in its own way."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.code_edits import Edit, edited

PACKAGE = "vllm.v1.spec_decode.draft_graphs"
Modules = dict[str, Any]
#: In the changes of a mutation: upstream's `propose` with the hooks in it.
HOOKED = "llm_base_proposer.py"
#: The scope of those changes in upstream's file.
PROPOSE = "SpecDecodeBaseProposer.propose"
#: The package as it is installed; filled by the first who loads it.
INSTALLED: Modules = {}


def belongs(name: str) -> bool:
    """Whether a module is the package or inside it."""
    return name == PACKAGE or name.startswith(PACKAGE + ".")


def loaded_package() -> Modules:
    """What is loaded of the package, by name."""
    importlib.import_module(f"{PACKAGE}.hooks")
    return {name: module for name, module in sys.modules.items() if belongs(name)}


def use_package(modules: Modules) -> None:
    """Let vLLM find these modules as the package, where it looks by name."""
    for name in [name for name in sys.modules if belongs(name)]:
        del sys.modules[name]
    sys.modules.update(modules)
    parent, _, child = PACKAGE.rpartition(".")
    setattr(importlib.import_module(parent), child, modules[PACKAGE])
    proposer: Any = importlib.import_module(f"{parent}.llm_base_proposer")
    proposer.create_draft_graphs = modules[f"{PACKAGE}.hooks"].create_draft_graphs


def load_package(mutation: tuple[Edit, ...], folder: Path) -> Modules:
    """Load the package once more, from a copy in `folder`, changed by `mutation`.

    :raises EditError: if an edit does not fit its file.
    """
    source = Path(INSTALLED[PACKAGE].__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in source.glob("*.py")}
    for file, *edit in mutation:
        if file != HOOKED:
            texts[file] = edited(texts[file], [edit], file)
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in [name for name in sys.modules if belongs(name)]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return loaded_package()


@contextlib.contextmanager
def changed_hooks(mutation: tuple[Edit, ...]) -> Iterator[None]:
    """Make those changes of the mutation, while inside, that are meant for upstream's `propose`.

    :raises EditError: if an edit does not fit it.
    """
    module: Any = importlib.import_module(f"{PACKAGE.rpartition('.')[0]}.llm_base_proposer")
    proposer = module.SpecDecodeBaseProposer
    stock = proposer.propose
    edits = [edit for file, *edit in mutation if file == HOOKED]
    if edits:
        scope: dict[str, Any] = {}
        code = compile(_propose(inspect.getsource(module), edits), module.__file__, "exec")
        exec(code, vars(module), scope)
        proposer.propose = scope["propose"]
    try:
        yield
    finally:
        proposer.propose = stock


def _propose(source: str, edits: list[list[str]]) -> ast.Module:
    """Upstream's `propose` alone, after edits of the whole file, as `write_mutated` makes them."""
    (propose,) = (
        node
        for owner in ast.parse(edited(source, edits, HOOKED)).body
        if isinstance(owner, ast.ClassDef) and owner.name == PROPOSE.partition(".")[0]
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == "propose"
    )
    return ast.Module([propose], [])
