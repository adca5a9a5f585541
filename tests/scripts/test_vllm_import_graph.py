"""Which imports run before vLLM loads its plugins, read without executing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.vllm_import_graph import PROCESSES, Tree, shipped_targets

FILES = {
    "vllm/__init__.py": 'LAZY = {"LLM": ".entrypoints.llm:LLM"}\nraise SystemExit("executed")\n',
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/llm.py": "from vllm.deep import target\n",
    "vllm/deep/__init__.py": "",
    "vllm/deep/target.py": "",
    "vllm/plain.py": "import os\nfrom .relative import x\n",
    "vllm/relative.py": "try:\n    import vllm.deep.target\nexcept ImportError:\n    pass\n",
    "vllm/lazy.py": "from vllm import LLM\n",
    "vllm/function.py": "def f():\n    from vllm.deep import target\n",
    "vllm/types_only.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from vllm.deep import target\nelse:\n    import vllm.function\n"
    ),
    "vllm/in_class.py": "class A:\n    if True:\n        from vllm.deep.target import x\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("entry", "chain"),
    [
        ("vllm.plain", ["vllm.plain", "vllm.relative", "vllm.deep.target"]),
        ("vllm.lazy", ["vllm.lazy", "vllm.entrypoints.llm", "vllm.deep.target"]),
        ("vllm.in_class", ["vllm.in_class", "vllm.deep.target"]),
        ("vllm.function", None),
        ("vllm.types_only", None),
        ("vllm.absent", None),
    ],
)
def test_imports_are_followed_where_they_run(
    tree: Tree, entry: str, chain: list[str] | None
) -> None:
    assert tree.chain([entry], "vllm.deep.target") == chain


def test_the_entries_are_of_every_kind_of_process() -> None:
    assert len(PROCESSES) == 6
    assert "vllm.v1.worker.gpu_model_runner" in shipped_targets()
