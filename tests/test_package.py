"""Packages, their releases and the paths in them: laws for whatever package features name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from overlay.errors import TargetError
from overlay.package import (
    VLLM,
    Package,
    ReleaseRange,
    check_path,
    distribution_name,
    folder_problem,
    namespace_problem,
    package_named,
    package_of_distribution,
    package_problem,
    path_problem,
)

ASCEND = package_named("vllm_ascend")

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
packages = st.one_of(
    st.sampled_from([VLLM, ASCEND]),
    names.filter(lambda name: not package_problem(name)).map(package_named),
)
finals = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 2)).map(
    lambda numbers: Version(".".join(map(str, numbers)))
)
versions = st.builds(
    lambda base, end: Version(f"{base}{end}"),
    finals,
    st.sampled_from(["", "rc1", "rc2", "a1", ".post1", ".dev1", "rc1.dev2"]),
)


@given(packages, packages)
def test_packages_keep_their_own_files_apart(one: Package, other: Package) -> None:
    """Whatever names they have, nothing that the overlay keeps of one is in that of another."""
    for package in (one, other):
        for path in (package.ledger_path, package.journal_path, package.ignore_path):
            assert path.startswith(f"{package.state_folder}/")
            assert path_problem(path, package) is not None
    assert (one.state_folder == other.state_folder) is (one == other)
    assert VLLM.state_folder == ".vllm-overlay"


@given(packages, packages, st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}){0,3}", fullmatch=True))
def test_a_path_lies_in_one_package(one: Package, other: Package, below: str) -> None:
    path = f"{one.name}/{below}.py"
    assert path_problem(path, one) is None
    check_path(path, one)
    if other != one:
        assert "lies outside" in str(path_problem(path, other))
        assert folder_problem(f"{one.name}/{below}", other) is not None
        with pytest.raises(TargetError):
            check_path(path, other)


@given(packages, versions, versions, versions)
def test_what_is_in_a_range(
    package: Package, first: Version, last: Version, release: Version
) -> None:
    """A final release between the ends; a pre-release only where it is known or an end."""
    try:
        span = ReleaseRange.parse(f"{first}..{last}", package)
    except ValueError:
        ends = {end for end in (first, last) if end.is_prerelease}
        dev = any(end.is_devrelease for end in ends)
        assert last < first or dev or (ends and package == VLLM)
        return
    assert first in span
    assert last in span
    known = {Version(text) for text in package.releases} | {first, last}
    between = first <= release <= last
    assert (release in span) is (between and (not release.is_prerelease or release in known))
    if package == VLLM:
        assert not release.is_prerelease or release not in span


@given(packages)
def test_a_package_is_found_by_its_distribution(package: Package) -> None:
    found = package_of_distribution(package.distribution.upper().replace("-", "."))
    if package.name == package.name.lower() and package.name.strip("_") == package.name:
        assert found is not None
        assert found.name.replace("__", "_") == package.name.replace("__", "_")


@pytest.mark.parametrize(
    "text", ["json", "os", "overlay", "", "a-b", "a.b", "../a", "class", "é", "a\n"]
)
def test_what_is_not_a_package(text: str) -> None:
    assert package_problem(text) is not None
    with pytest.raises(ValueError, match=r"."):
        package_named(text)


def test_the_known_releases_are_in_order_and_each_once() -> None:
    for package in (VLLM, ASCEND):
        known = [Version(text) for text in package.releases]
        assert known == sorted(set(known))
        assert [str(version) for version in known] == list(package.releases)
    assert not any(Version(text).is_prerelease for text in VLLM.releases)


@pytest.mark.parametrize(
    ("distribution", "name"), [("flashinfer-python", "flashinfer"), ("amd_aiter", "aiter")]
)
def test_a_distribution_of_another_name_installs_its_package(distribution: str, name: str) -> None:
    package = package_of_distribution(distribution)
    assert package is not None
    assert package.name == name
    assert package == package_named(name)
    assert distribution_name(package.distribution) == distribution_name(distribution)


def test_a_namespace_is_told() -> None:
    assert "as a namespace" in (namespace_problem("megatron_core") or "")
    assert namespace_problem("vllm") is None
