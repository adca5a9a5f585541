"""Releases: fetched from an index, checked, and named on the command line."""

from __future__ import annotations

import hashlib
import random
import zipfile
from pathlib import Path

import pytest

from overlay.errors import ArchiveError, PackageIndexError, TargetError, UsageError
from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import releases, resolve
from tests.support import fake_vllm
from tests.support.fake_index import PATH, FakeIndex, is_whole
from tests.support.release_sources import archive_path

pytestmark = pytest.mark.usefixtures("cache")

# Where a release comes from


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_the_sdist_is_preferred(tmp_path: Path, index: FakeIndex, json: bool) -> None:
    index.json = json
    wheel, sdist = fake_vllm.wheel(tmp_path), fake_vllm.sdist(tmp_path)
    index.add(wheel)
    index.add(sdist)

    target = resolve("0.26.0")

    assert is_whole(target)
    assert (target.name, target.vllm, target.root) == ("0.26.0", "0.26.0", None)
    assert (target.record, target.warnings) == (None, ())
    assert (index.asked(wheel.name), index.asked(sdist.name)) == (0, 1)


def _large_wheel(folder: Path, version: str = "0.15.1") -> Path:
    binary = random.Random(7).randbytes(6 << 20)
    return fake_vllm.wheel(folder, version, extra={"vllm/_C.abi3.so": binary})


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_of_a_wheel_only_what_is_needed_is_fetched(
    tmp_path: Path, index: FakeIndex, json: bool
) -> None:
    index.json = json
    wheel = _large_wheel(tmp_path)
    index.add(wheel)

    target = resolve("0.15.1")

    assert is_whole(target, "0.15.1")
    assert index.sent(wheel.name) < wheel.stat().st_size / 3
    (warning,) = target.warnings
    assert "the hash of the whole could not be checked" in warning
    assert resolve("0.15.1").warnings == target.warnings
    with pytest.raises(ArchiveError, match="only text files"):
        target.read("vllm/_C.abi3.so")


def test_a_wheel_is_fetched_whole_where_ranges_are_not_served(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.ranges = False
    wheel = _large_wheel(tmp_path)
    index.add(wheel)

    target = resolve("0.15.1")

    assert is_whole(target, "0.15.1")
    assert target.warnings == ()


def test_a_whole_wheel_is_checked_against_the_index(tmp_path: Path, index: FakeIndex) -> None:
    index.ranges = False
    wheel = fake_vllm.wheel(tmp_path)
    index.add(wheel)
    index.hashes[wheel.name] = "0" * 64

    with pytest.raises(PackageIndexError, match=r"expected the sha256 0{64}"):
        resolve("0.26.0")


def test_a_wheel_that_contradicts_its_record_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    with zipfile.ZipFile(wheel) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    contents[PATH] += b"# changed\n"
    with zipfile.ZipFile(wheel, "w") as new:
        for name, content in contents.items():
            new.writestr(name, content)
    index.add(wheel)

    with pytest.raises(ArchiveError, match="its RECORD says") as caught:
        resolve("0.26.0")

    assert PATH in str(caught.value)


def test_a_folder_of_links_and_a_file_index(tmp_path: Path, configure) -> None:
    fake_vllm.sdist(tmp_path / "links", "0.26.0")
    fake_vllm.sdist(tmp_path / "simple" / "vllm", "0.27.0")
    (tmp_path / "links" / "vllm-broken.whl").write_bytes(b"")
    (tmp_path / "links" / "torch-2.0.tar.gz").write_bytes(b"")
    configure((tmp_path / "simple").as_uri(), find_links=((tmp_path / "links").as_uri(),))

    assert is_whole(resolve("0.26.0"))
    assert is_whole(resolve("0.27.0"), "0.27.0")


def test_a_file_index_with_a_page(tmp_path: Path, configure) -> None:
    sdist = fake_vllm.sdist(tmp_path / "files")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    page = tmp_path / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True)
    link = f"<a href='../../files/{sdist.name}#sha256={digest}'>x</a>"
    page.write_text(link)
    configure((tmp_path / "simple").as_uri())

    target = resolve("0.26.0")

    assert is_whole(target)
    assert target.warnings == ()


def test_an_index_without_the_project_is_passed_over(tmp_path: Path, index, configure) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    configure(f"{index.url}/empty", (tmp_path / "none").as_uri(), index.simple)

    assert resolve("0.26.0").warnings == ()


def test_a_broken_index_beside_a_good_one_is_a_warning_this_time_only(
    tmp_path: Path, index, configure
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    index.statuses["/broken/vllm/"] = [400]
    configure(f"{index.url}/broken", index.simple)

    (warning,) = resolve("0.26.0").warnings

    assert "/broken/vllm/: the server answers 400" in warning
    assert resolve("0.26.0").warnings == ()


def test_a_local_label_is_matched_only_where_it_is_asked_for(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.add(fake_vllm.sdist(tmp_path, "0.26.0+cpu"))
    index.add(fake_vllm.sdist(tmp_path, "0.26.0"))

    assert resolve("0.26.0").vllm == "0.26.0"
    assert resolve("0.26.0+cpu").vllm == "0.26.0+cpu"
    other = resolve("0.26.0+cu9")
    assert other.vllm == "0.26.0"
    assert "0.26.0 was taken for 0.26.0+cu9" in other.warnings[0]


def test_a_yanked_release_is_a_warning(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.yanked.add(sdist.name)

    assert "was yanked from" in resolve("0.26.0").warnings[0]


def test_a_file_without_a_hash_is_a_warning(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.hashes[sdist.name] = ""

    assert "it was not checked" in resolve("0.26.0").warnings[0]


def test_a_folder_that_is_called_like_a_version_is_the_folder(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    fake_vllm.tree(tmp_path / "0.26.0", "0.99.0")
    monkeypatch.chdir(tmp_path)

    found = resolve("0.26.0")

    assert (found.name, found.vllm) == ("0.26.0", "0.99.0")
    assert "the release is vllm==0.26.0" in found.warnings[0]
    assert resolve("./0.26.0").warnings == ()
    assert resolve("vllm==0.26.0").vllm == "0.26.0"
    # So what --releases names is never the folder.
    (named,) = releases("0.26.0")
    assert resolve(named).vllm == "0.26.0"


@pytest.mark.parametrize("name", ["v32", "3", "0.26.0rc1", "1.0+cpu"])
def test_a_place_that_holds_no_package_says_why_it_was_looked_at(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(
        TargetError, match=r"is here, so it is read .* the release is vllm=="
    ) as told:
        resolve(name)

    assert "vllm/" in str(told.value)


# --releases


def test_known_releases_need_no_network(offline, configure) -> None:
    configure()
    offline()

    assert releases("all") == KNOWN_RELEASES
    assert releases("0.20.0..0.33.0") == KNOWN_RELEASES
    assert releases("0.25.0..0.26.0") == ("0.25.0", "0.25.1", "0.26.0")
    assert releases("0.26.0") == ("0.26.0",)
    assert releases("0.26.0, 0.20.0..0.20.1,0.26.0") == ("0.20.0", "0.20.1", "0.26.0")
    assert releases("0.26.1.dev3+gabc") == ("0.26.1.dev3+gabc",)


def test_a_range_beyond_the_known_releases_asks_the_index(tmp_path: Path, index: FakeIndex) -> None:
    for version in ("0.15.1", "0.34.0rc1", "0.34.0", "0.35.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    index.add(fake_vllm.sdist(tmp_path, "0.36.0"))
    index.yanked.add("vllm-0.36.0.tar.gz")

    assert releases("0.32.0..0.35.0") == ("0.32.0", "0.33.0", "0.34.0", "0.35.0")
    assert releases("0.15.1..0.20.0") == ("0.15.1", "0.20.0")
    assert releases("0.15.1..0.15.1") == ("0.15.1",)
    # Between two known releases lie those that are known: the same every day.
    assert "0.34.0" not in releases("0.20.0..0.33.0")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("0.32.0..0.34.0", "0.34.0"),
        ("0.19.0..0.33.0", "0.19.0"),
        ("0.20.3..0.33.0", "0.20.3"),
        ("0.20.3..0.20.9", "0.20.3 and 0.20.9"),
        ("0.26.0,0.32.0..0.36.0", "0.36.0"),
        ("vllm==0.20.0..99.0", "99.0"),
    ],
)
def test_a_range_ends_at_releases_that_are_there(
    tmp_path: Path, index: FakeIndex, text: str, missing: str
) -> None:
    index.add(fake_vllm.sdist(tmp_path, "0.36.0"))
    index.yanked.add("vllm-0.36.0.tar.gz")
    with pytest.raises(UsageError, match=f"found {missing}, which the overlay does not know"):
        releases(text)


@pytest.mark.parametrize("text", ["", "0.20.0..", "..", "0.33.0..0.20.0", "newest"])
def test_releases_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--releases"):
        releases(text)


@pytest.mark.network
def test_real_releases_from_the_configured_index() -> None:
    """0.26.0 has an sdist, 0.15.1 has only wheels of half a gigabyte."""
    for name in ("0.26.0", "0.15.1"):
        target = resolve(name)

        runner = target.read("vllm/v1/worker/gpu_model_runner.py")
        assert target.vllm == name
        assert runner is not None
        compile(runner, "gpu_model_runner.py", "exec")
        assert archive_path(name).stat().st_size < 50_000_000
