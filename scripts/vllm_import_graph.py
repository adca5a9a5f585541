"""Which modules can be imported in a process of vLLM before it loads its plugins?

``python3 scripts/vllm_import_graph.py FOLDER... [--target MODULE]... [--json]``, each folder an
unpacked sdist or a checkout that holds ``vllm/``.  Nothing of them is executed: every import that
runs when a module is imported is followed (at module level, in ``if``, ``try``, ``with`` and class
bodies; not in functions, and not under ``TYPE_CHECKING``), whatever its condition, from the modules
that each kind of process is entered through.  So a target that is not reached is not imported there
by an import statement.  What a function imports on the way is not seen: ``--run PYTHON`` imports
the same entries with an interpreter that has vLLM's dependencies, and tells which targets came
along.

The targets are, unless named, the modules that the shipped features patch.

``--table`` writes ``overlay/_features/early-modules.json``: every module that is reached in any
kind of process, of each known release (fetched where it is not in the cache).
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

#: The modules that a process of each kind is entered through, before it loads the plugins.
#: A spawned process unpickles its function and the classes it is handed; a forked one inherits the
#: modules of its parent, where the plugins were loaded already.
_EXECUTORS = tuple(
    f"vllm.v1.executor.{name}"
    for name in ("abstract", "uniproc_executor", "multiproc_executor", "ray_executor")
)
PROCESSES: dict[str, tuple[str, ...]] = {
    "api server": (
        "vllm.entrypoints.cli.main",
        "vllm.entrypoints.cli.serve",
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.llm",
        "vllm.engine.arg_utils",
        "vllm.v1.engine.async_llm",
    ),
    "engine core": ("vllm.v1.engine.core", "vllm.v1.engine.utils", *_EXECUTORS),
    "worker (multiprocess)": (
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.worker.worker_base",
    ),
    "worker (in the engine core)": (
        "vllm.v1.executor.uniproc_executor",
        "vllm.v1.worker.worker_base",
    ),
    "worker (Ray)": (
        "vllm.v1.executor.ray_utils",
        "vllm.v1.executor.ray_executor",
        "vllm.v1.executor.ray_executor_v2",
        "vllm.v1.worker.worker_base",
    ),
    "registry's helper": ("vllm.model_executor.models.registry",),
}


class Tree:
    """The modules of one vLLM and what each imports when it is imported.

    :param root: the folder that holds ``vllm/``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._imports: dict[str, frozenset[str]] = {}

    def file(self, module: str) -> Path | None:
        """The file of a module, or ``None`` where there is none."""
        base = self.root.joinpath(*module.split("."))
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def imports(self, module: str) -> frozenset[str]:
        """The modules of vLLM that ``module`` imports, its packages included."""
        if module not in self._imports:
            self._imports[module] = frozenset(self._read(module))
        return self._imports[module]

    def _read(self, module: str) -> Iterator[str]:
        yield from _packages(module)
        file = self.file(module)
        if file is None:
            return
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for node in _statements(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names: Iterable[str] = (alias.name for alias in node.names)
            else:
                names = self._named(node, package)
            yield from (name for name in names if name.split(".")[0] == "vllm")

    def _named(self, node: ast.ImportFrom, package: str) -> Iterator[str]:
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        if base.split(".")[0] != "vllm":
            return
        yield base
        for alias in node.names:
            if self.file(f"{base}.{alias.name}") is not None:
                yield f"{base}.{alias.name}"
            elif base == "vllm" and alias.name in self.lazy:
                yield self.lazy[alias.name]

    @property
    def lazy(self) -> dict[str, str]:
        """What ``from vllm import NAME`` imports on demand: name -> module."""
        file = self.file("vllm")
        found: dict[str, str] = {}
        for node in ast.walk(ast.parse(file.read_bytes() if file else b"")):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        place = str(value.value).partition(":")[0]
                        if place.startswith("."):
                            found[str(key.value)] = f"vllm{place}"
        return found

    def early(self) -> frozenset[str]:
        """Every module that a process of any kind may import before it loads the plugins."""
        came = {name for entries in PROCESSES.values() for name in entries if self.file(name)}
        waiting = deque(came)
        while waiting:
            new = {name for name in self.imports(waiting.popleft()) if self.file(name)} - came
            came |= new
            waiting += new
        return frozenset(came)

    def chain(self, entries: Iterable[str], target: str) -> list[str] | None:
        """How ``target`` is reached from the entries: the modules on the way, or ``None``."""
        came: dict[str, str | None] = {name: None for name in entries if self.file(name)}
        waiting = deque(came)
        while waiting:
            module = waiting.popleft()
            if module == target:
                way = [module]
                while (before := came[way[-1]]) is not None:
                    way.append(before)
                return way[::-1]
            for name in sorted(self.imports(module)):
                if name not in came and self.file(name):
                    came[name] = module
                    waiting.append(name)
        return None


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and _only_for_types(node.test):
            for other in node.orelse:
                yield from _statements(ast.Module([other], []))
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _statements(node)


def _only_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def shipped_targets() -> tuple[str, ...]:
    """The modules that the shipped features patch."""
    from overlay._features.folder import load
    from overlay._features.sources import shipped_folder
    from overlay.package import module_name

    return tuple(
        sorted(
            {
                module_name(variant.patch.path)
                for feature in load([shipped_folder()])
                for topic in feature.topics
                for variant in topic.variants
            }
        )
    )


def unpacked(release: str, folder: Path) -> Path:
    """The Python sources of a release of vLLM, below a folder."""
    from overlay.targets.releases import CachedRelease
    from overlay.targets.resolution import resolve

    resolve(release)  # fetches it where it is not in the cache
    kept = CachedRelease.open(release)
    for path in kept.paths():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(kept.read(path) or b"")
    return folder


def table(early: Mapping[str, frozenset[str]]) -> str:
    """The early modules by ranges of releases, as JSON.

    :param early: those of each release, oldest first.
    """
    releases = list(early)
    spans: dict[str, list[str]] = {}
    for module in sorted(frozenset[str]().union(*early.values())):
        there = [module in early[release] for release in releases]
        first = None
        for at, here in enumerate([*there, False]):
            if here and first is None:
                first = at
            elif not here and first is not None:
                span = f"{releases[first]}..{releases[at - 1]}"
                spans.setdefault(span, []).append(module)
                first = None
    return json.dumps(dict(sorted(spans.items())), indent=0) + "\n"


def _write_table() -> None:
    from overlay._features.vllm_defaults import TABLE
    from overlay.package import KNOWN_RELEASES

    early = {}
    for release in KNOWN_RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            early[release] = Tree(unpacked(release, Path(folder))).early()
        print(f"{release}  {len(early[release])} modules", flush=True)
    place = Path(__file__).resolve().parent.parent / "overlay/_features" / TABLE
    place.write_text(table(early), encoding="utf-8")


_IMPORT_ALL = """
import importlib, json, sys
folder, entries, targets = json.loads(sys.argv[1])
sys.path.insert(0, folder)
failed = {}
for name in entries:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"[:160]
loaded = [name for name in targets if name in sys.modules]
count = sum(name.split(".")[0] == "vllm" for name in sys.modules)
print("RESULT " + json.dumps({"loaded": loaded, "failed": failed, "modules": count}))
"""


def _report_run(python: str, folder: Path, targets: tuple[str, ...]) -> int:
    """Import the entries of every kind of process in one, and say which targets came with them."""
    tree = Tree(folder)
    entries = [name for name in dict.fromkeys(sum(PROCESSES.values(), ())) if tree.file(name)]
    done = subprocess.run(
        [python, "-c", _IMPORT_ALL, json.dumps([str(folder), entries, targets])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        print(f"{folder.name}  did not run: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return 1
    found = json.loads(line.removeprefix("RESULT "))
    imported = len(entries) - len(found["failed"])
    print(
        f"{folder.name}  {imported} of {len(entries)} entries imported, {found['modules']} modules "
        f"of vLLM; targets: {', '.join(found['loaded']) or 'none'}",
        flush=True,
    )
    for name, why in found["failed"].items():
        print(f"    {name}: {why}", flush=True)
    return int(bool(found["loaded"]))


def main() -> int:
    """Print a row for each folder and kind of process; 1 where a target is reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--table", action="store_true", help="write the table of early modules")
    parser.add_argument("--target", action="append", dest="targets")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--run", metavar="PYTHON", help="import the entries with it, too, which executes them"
    )
    asked = parser.parse_args()
    if asked.table:
        _write_table()
        return 0
    if not asked.folders:
        parser.error("expected a folder, or --table")
    targets = tuple(asked.targets or shipped_targets())
    if asked.run:
        return max(_report_run(asked.run, folder, targets) for folder in asked.folders)
    found = []
    for folder in asked.folders:
        tree = Tree(folder)
        for process, entries in PROCESSES.items():
            for target in targets:
                chain = tree.chain(entries, target)
                found.append(
                    {"folder": folder.name, "process": process, "target": target, "chain": chain}
                )
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        for row in found:
            way = " -> ".join(row["chain"]) if row["chain"] else "not reached"
            print(f"{row['folder']}  {row['process']:<28} {row['target']}: {way}")
    return int(any(row["chain"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
