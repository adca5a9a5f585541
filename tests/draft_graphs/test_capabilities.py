"""The rows of platforms and attention backends: in the documents, and in vLLM's sources."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve
from tests.draft_graphs import backend_readings
from tests.draft_graphs.added_modules import FOLDER, added
from tests.draft_graphs.capability_mutations import CAPABILITY_MUTATIONS
from tests.draft_graphs.capability_tables import PAGE, page_with_tables
from tests.draft_graphs.mutation_types import UnitMutation
from tests.support.code_edits import edited

capabilities: Any = added("capabilities")
attention: Any = added("attention")

ROOT = Path(__file__).parents[2]
REGISTRY = "vllm.v1.attention.backends.registry"


def test_the_page_has_the_rows() -> None:
    """`python -m tests.draft_graphs.capability_tables` writes them."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_tables(page)


def test_the_appendix_has_the_readings() -> None:
    """`python -m tests.draft_graphs.backend_readings` writes it."""
    assert backend_readings.PAGE.read_text(encoding="utf-8") == backend_readings.render()


def test_every_row_says_what_shows_it_or_why_it_is_refused() -> None:
    names = [row.name for row in capabilities.PLATFORMS]
    assert len(set(names)) == len(names)
    for row in (*capabilities.PLATFORMS, *capabilities.BACKENDS):
        assert row.where, row
        assert bool(row.why) == (row.evidence == "refused"), row
    for row in capabilities.BACKENDS:
        assert row.platforms, row
        assert set(row.platforms) <= set(names), row
        assert not (row.kept and row.evidence in ("gpu", "refused")), row
        assert row.kernel == "" or row.kernel in capabilities.KERNELS


def test_what_shows_a_row_exists() -> None:
    for row in (*capabilities.PLATFORMS, *capabilities.BACKENDS):
        if row.evidence in ("gpu", "doubles"):
            assert list(ROOT.glob(row.where)), row.where
        place = row.where.partition(",")[0]
        if place.startswith(("docs/", "tests/", "bench/")):
            assert list(ROOT.glob(place)), row.where
        if row in capabilities.BACKENDS and place.startswith("docs/"):
            page = (ROOT / place).read_text(encoding="utf-8")
            assert f"](appendix/{backend_readings.PAGE.name})" in page
            page += backend_readings.PAGE.read_text(encoding="utf-8")
            for name in row.names:
                assert name in page, f"{place} says nothing of {name}"
        if row in capabilities.BACKENDS and row.evidence == "doubles":
            twin = (ROOT / row.where).read_text(encoding="utf-8")
            for cls in row.classes:
                # A twin names them whole, or by what their module's classes have in common.
                name = cls.rpartition(".")[2].removesuffix("Backend")
                assert f'"{name}' in twin, f"{row.where} does not run {cls}"


def test_a_row_is_found_by_its_classes_and_its_kernel_only() -> None:
    for row in capabilities.BACKENDS:
        for cls in row.classes:
            asked = (capabilities.BACKENDS, cls, row.builder, row.kernel)
            assert capabilities.backend_row(*asked) == row
            assert capabilities.backend_row(*asked[:3], "another kernel") is None
            assert capabilities.backend_row(*asked[:2], "a.Builder", row.kernel) is None
            assert capabilities.backend_row(asked[0], "a.Backend", *asked[2:]) is None
    for row in capabilities.PLATFORMS:
        assert [capabilities.platform_row(cls) for cls in row.classes] == [row] * len(row.classes)
    assert capabilities.platform_row("vllm.platforms.interface.Platform") is None


class Found(NamedTuple):
    """A class in a release's sources."""

    module: str
    node: ast.ClassDef

    @property
    def path(self) -> str:
        return f"{self.module}.{self.node.name}"


@functools.cache
def names_of(source: bytes) -> dict[str, ast.ClassDef | tuple[str, str]]:
    """The classes that a module defines, and those that it imports: module and name."""
    names: dict[str, ast.ClassDef | tuple[str, str]] = {}
    nodes = list(ast.parse(source).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.If, ast.Try)):
            nodes += node.body
        elif isinstance(node, ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    return names


@functools.cache
def module_names(release: str, module: str) -> dict[str, ast.ClassDef | tuple[str, str]]:
    for end in (".py", "/__init__.py"):
        data = resolve(release).read(module.replace(".", "/") + end)
        if data is not None:
            return names_of(data)  # most modules are the same in several releases
    return {}


def find(release: str, module: str, name: str) -> Found | None:
    """The class that a name of a module stands for, wherever it is defined."""
    node = module_names(release, module).get(name)
    if isinstance(node, tuple):
        return find(release, *node)
    return None if node is None else Found(module, node)


def found(release: str, path: str) -> Found | None:
    module, _, name = path.rpartition(".")
    return find(release, module, name)


def builder_of(release: str, path: str) -> str | None:
    """The builder that a backend or its base classes return, by module and name."""
    backend = found(release, path)
    if backend is None:
        return None
    for node in backend.node.body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_builder_cls":
            (returned,) = (each for each in ast.walk(node) if isinstance(each, ast.Return))
            assert returned.value is not None
            cls = find(release, backend.module, ast.unparse(returned.value))
            return None if cls is None else cls.path
    for base in backend.node.bases:
        cls = find(release, backend.module, ast.unparse(base))
        if cls is not None and (builder := builder_of(release, cls.path)):
            return builder
    return None


def enumeration(release: str) -> Iterator[tuple[str, str]]:
    """The members of vLLM's enumeration, with the class that each names."""
    registry = found(release, f"{REGISTRY}.AttentionBackendEnum")
    assert registry is not None
    for node in registry.node.body:
        if isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), ast.literal_eval(node.value) or ""


def holds(row: Any, release: str) -> bool:
    first, last = (tuple(map(int, end.split("."))) for end in row.releases.split(".."))
    return first <= tuple(map(int, release.split("."))) <= last


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_every_class_of_a_row_is_in_every_release_of_the_row(release: str) -> None:
    members = dict(enumeration(release))
    for row in capabilities.BACKENDS:
        if not holds(row, release) or not row.builder.startswith("vllm."):
            continue
        assert found(release, row.builder) is not None, row.builder
        there = [path for path in row.classes if found(release, path) is not None]
        assert there, row.classes
        for name in row.names:
            # What vLLM chooses by this name is a class of the row, with the builder of the row.
            assert members[name] in there
            assert builder_of(release, members[name]) == row.builder, name
    for platform in capabilities.PLATFORMS:
        for path in platform.classes:
            if path.startswith("vllm."):
                assert found(release, path) is not None, path


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_every_backend_of_a_release_has_a_row_or_is_listed_as_unread(release: str) -> None:
    rows = [row for row in capabilities.BACKENDS if holds(row, release)]
    for name, path in enumeration(release):
        described = [row for row in rows if name in row.names and path in row.classes]
        listed = name in capabilities.UNREAD | capabilities.NO_BACKEND
        assert bool(described) != listed, name


@pytest.mark.network
def test_what_is_listed_as_unread_is_a_backend_of_some_release() -> None:
    members = {name for release in KNOWN_RELEASES for name, _ in enumeration(release)}
    assert members >= capabilities.UNREAD | capabilities.NO_BACKEND


def shown_by_the_table(capabilities: Any, attention: Any) -> list[str]:
    """What the table of backends gets wrong, by the rule that it breaks."""
    rows, flash = capabilities.BACKENDS, capabilities.BACKENDS[0]
    cls, cuda = flash.classes[0], capabilities.PLATFORMS[0]
    rocm = capabilities.platform_row("vllm.platforms.rocm.RocmPlatform")
    native = next(row for row in rows if row.kernel == "native")
    named = {row.names[0]: row for row in rows}
    triton = next(row for row in capabilities.GRANTED if row.names == ("TRITON_MLA",))
    doubles = attention.Attention("TRITON_MLA", "B", triton)
    flex = attention.Attention("FLEX_ATTENTION", "B", named["FLEX_ATTENTION"])
    by_triton = attention.Attention("TRITON_ATTN", "B", named["TRITON_ATTN"])
    rules = {
        "builder": capabilities.backend_row(rows, cls, "a.Builder", flash.kernel) is None,
        "backend": capabilities.backend_row(rows, "a.Backend", flash.builder, "fa3") is None,
        "kernel": capabilities.backend_row(rows, native.classes[0], native.builder, "native")
        == native,
        "untried": bool(attention.refusals([doubles], cuda, False))
        and not attention.refusals([doubles], cuda, True),
        "refused": bool(attention.refusals([flex], cuda, True)),
        "platform": bool(attention.refusals([by_triton], rocm, False)),
        "told": list(attention.untried_grants([doubles], cuda)) != [],
    }
    return [rule for rule, holds in rules.items() if not holds]


def with_bug(mutation: UnitMutation) -> list[str]:
    """What the table gets wrong with a bug in one of its modules."""
    ((file, *edit),) = mutation.changes
    source = (FOLDER / "draft_graphs" / file).read_text(encoding="utf-8")
    name = f"draft_graphs.mutated_{Path(file).stem}"
    module: Any = ModuleType(name)
    module.__package__ = "draft_graphs"
    sys.modules[name] = module
    try:
        exec(compile(edited(source, [edit], file), file, "exec"), vars(module))
    finally:
        del sys.modules[name]
    if file == "capabilities.py":
        return shown_by_the_table(module, added("attention"))
    return shown_by_the_table(capabilities, module)


@pytest.mark.parametrize("mutation", CAPABILITY_MUTATIONS, ids=lambda each: each.name)
def test_mutation_of_the_table_is_caught(mutation: UnitMutation) -> None:
    assert shown_by_the_table(capabilities, added("attention")) == []
    assert with_bug(mutation) != []


@pytest.mark.parametrize("name", [row.name for row in capabilities.PLATFORMS])
def test_a_hint_names_no_backend_of_which_a_kernel_is_refused_beside_one_that_is_shown(
    name: str,
) -> None:
    """Whoever follows it with FLASHINFER may get its native kernels, and no graphs."""
    platform = next(row for row in capabilities.PLATFORMS if row.name == name)
    rows = [row for row in capabilities.BACKENDS if name in row.platforms]
    shown = [row for row in rows if attention.evidence(platform, row) == "gpu"]
    refused = {each for row in rows if row.evidence == "refused" for each in row.names}
    hint = set(attention.choose_hint(platform).replace(",", " ").split())
    for row in shown:
        assert hint.isdisjoint(set(row.names) & refused)
    if name == "cuda":
        assert {"FLASH_ATTN", "TRITON_ATTN"} <= hint
        assert "FLASHINFER" not in hint
