"""Small releases in the place of those of the package index, and commands that see only them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from packaging.version import Version

from overlay.authoring import releases as package_releases
from overlay.errors import PackageIndexError
from overlay.package import VLLM, Package
from overlay.targets import resolution
from tests.support import fake_vllm
from tests.support.cli import PROPOSER, RUNNER

#: In the last one, the runner returns otherwise; in the first one, the proposer does.
RELEASES = ("0.24.0", "0.25.0", "0.26.0", "0.27.0")

#: The function itself, whatever a test puts in its place.
_PART = resolution._part


def serve(monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
    """Let the commands that write patches know these releases of vLLM, and no others."""
    given = tuple(names)

    def known(package: Package) -> tuple[str, ...]:
        return given if package.name == VLLM.name else package.releases

    monkeypatch.setattr(package_releases, "names_of", known)


def know(monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
    """Let ``--releases all`` mean these releases of vLLM, and no others; see ``serve``, too."""
    given = tuple(names)
    serve(monkeypatch, given)
    package = VLLM._replace(releases=given)
    monkeypatch.setattr(resolution, "VLLM", package)
    defaults = resolution.releases.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "package", package)

    def part(text: str, whole: str, of: Package) -> Iterable[Version]:
        return _PART(text, whole, package if of.name == VLLM.name else of)

    monkeypatch.setattr(resolution, "_part", part)


def files(release: str) -> dict[str, bytes]:
    """The files of a release."""
    found = fake_vllm.files(release)
    if release == RELEASES[-1]:
        found[RUNNER] = found[RUNNER].replace(b"return captured\n", b"return captured or 0\n")
    if release == RELEASES[0]:
        found[PROPOSER] = found[PROPOSER].replace(b"return drafts", b"return list(drafts)")
    return found


@dataclass(frozen=True)
class Release:
    """A release; satisfies ``overlay.package.Tree``."""

    contents: Mapping[str, bytes]
    name: str = "a release"
    root: None = None

    def read(self, path: str) -> bytes | None:
        return self.contents.get(path)


@dataclass
class Index:
    """What the package index serves; ``gone`` are the releases that it does not serve any more."""

    gone: set[str]


def install(monkeypatch: pytest.MonkeyPatch) -> Index:
    """Let every command see these releases and no others."""
    index, real = Index(set()), resolution.resolve

    def resolve(name: str | None, **options: object) -> object:
        if name in index.gone:
            raise PackageIndexError(f"release {name}: it is not on the index")
        if name in RELEASES:
            return Release(files(name))
        # Options are passed through as they come.
        return real(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(resolution, "resolve", resolve)
    serve(monkeypatch, RELEASES)
    return index
