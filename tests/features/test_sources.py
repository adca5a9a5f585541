"""What a folder of patches is read from, and the hash over it, without parsing a feature."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from overlay._features import sources
from overlay._features.sources import ErrorList, fingerprint, is_document, source_of, table_of
from overlay.errors import UsageError
from tests.support.patches import write_feature

SWITCH = sources.SWITCH


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_texts_for_people_are_told_by_their_names() -> None:
    names = "README README.md LICENSE.txt NOTICE.rst CHANGELOG.de.md".split()
    assert all(is_document(Path(name)) for name in names)
    assert not any(is_document(Path(name)) for name in ("README.patch", "x.md", "READMES.md"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files, links and folders, which a switch brings in part."""
    files = {
        "b/deep/x.py": b"x\n",
        "a": b"1",
        "c~": b"left by an editor",
        "__pycache__/y": b"",
        f"{SWITCH}/new/z": b"z",
        f"d/{SWITCH}/no": b"hidden, as any other",
        "e\udcff": b"no UTF-8",
    }
    for name, data in files.items():
        path = tmp_path / "it" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "it/link").symlink_to("a")
    (tmp_path / "it/linked").symlink_to("b")
    return tmp_path / "it"


def test_the_fingerprint_is_over_names_and_bytes_in_their_order(folder: Path) -> None:
    contents: list[tuple[str, bytes]] = []
    whole = fingerprint([str(folder), str(folder / "b")], lambda *each: contents.append(each))
    no_link = b"expected a plain file, found a symbolic link"
    assert whole == sha(
        f"{SWITCH}/new/z\0".encode() + b"1\0z",
        b"a\0001\0001",
        b"b/deep/x.py\0002\0x\n",
        b"e\xff\0008\0no UTF-8",
        b"link\0" + no_link + b"\0",
        b"linked\0" + no_link + b"\0",
        b"\0folder\0",
        b"deep/x.py\0002\0x\n",
        b"\0folder\0",
    )
    assert contents == [
        (f"{SWITCH}/new/z", b"z"),
        ("a", b"1"),
        ("b/deep/x.py", b"x\n"),
        ("e\udcff", b"no UTF-8"),
        ("deep/x.py", b"x\n"),
    ]
    assert fingerprint([str(folder / "nothing")]) == sha(b"\0folder\0")


def test_what_cannot_be_read_counts_by_its_name_and_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: str, *, follow: bool) -> bytes | None:
        if os.path.basename(path) == "a":
            raise OSError
        return b"" if follow else None

    monkeypatch.setattr(sources, "read_regular", unreadable)
    names = [f"{SWITCH}/new/z".encode(), b"a", b"b/deep/x.py", b"e\xff", b"link", b"linked"]
    causes = {b"a": b"unreadable"}
    rows = [name + b"\0" + causes.get(name, b"vanished") + b"\0" for name in names]
    assert fingerprint([str(folder)]) == sha(*rows, b"\0folder\0")


def test_a_folder_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST", 3)
    for name in "abc":
        (tmp_path / name).touch()
    fingerprint([str(tmp_path)])
    (tmp_path / "d").touch()
    with pytest.raises(UsageError, match="found more than 3 files in it"):
        fingerprint([str(tmp_path)])


def test_the_table_of_a_feature_is_read_through_no_link(tmp_path: Path) -> None:
    place = write_feature(tmp_path, {}, toml='shared = ["vllm/a.py"]')
    assert (table_of(place) or {})["shared"] == ["vllm/a.py"]
    (place / "feature.toml").rename(tmp_path / "elsewhere")
    assert table_of(place) == {}
    (place / "feature.toml").symlink_to(tmp_path / "elsewhere")
    assert table_of(place) is None
    assert table_of(write_feature(tmp_path, {}, toml="shared = [")) is None


def test_what_a_feature_is_read_from_has_the_shared_modules_in_it(tmp_path: Path) -> None:
    place = write_feature(tmp_path, {}, toml='shared = ["vllm/a.py", "vllm/b.py", "vllm/c.py"]')
    own = fingerprint([str(place)])
    files = tmp_path / "shared/files/vllm"
    assert source_of(place, tmp_path) == own
    files.mkdir(parents=True)
    assert source_of(place, tmp_path) == own
    (files / "a.py").write_text("a")
    (files / "b.py").touch()
    (files / "c.py").symlink_to("a.py")
    (files / "other.py").touch()
    rows = (b"vllm/a.py\0001\0a", b"vllm/b.py\0000\0", b"vllm/c.py\0000\0")
    assert source_of(place, tmp_path) == sha(own.encode(), *rows)
    (tmp_path / "shared").rename(tmp_path / "real")
    (tmp_path / "shared").symlink_to("real")
    assert source_of(place, tmp_path) == own
    assert source_of(tmp_path / "nothing", tmp_path) == fingerprint([str(tmp_path / "nothing")])


def test_text_that_is_not_utf_8_has_its_line(tmp_path: Path) -> None:
    for data, line in ((b"\n\xff\n", 2), (b"\xff\n", 1), (b"a\nb\nc \xff", 3)):
        (tmp_path / "x").write_bytes(data)
        errors = ErrorList()
        assert sources.read_text(tmp_path / "x", errors) is None
        assert [str(each) for each in errors] == [f"{tmp_path / 'x'}:{line}: it is not UTF-8"]
    (tmp_path / "x").write_text("ä\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("x")
    errors = ErrorList()
    assert sources.read_text(tmp_path / "x", errors) == "ä\n"
    assert (sources.read_text(tmp_path / "link", errors), len(errors)) == (None, 1)


def test_a_folder_that_its_group_may_write_to_is_trusted(tmp_path: Path) -> None:
    write_feature(tmp_path, {}).chmod(0o775)
    assert sources.owner_problem(tmp_path) is None
    (tmp_path / "demo").chmod(0o777)
    assert sources.owner_problem(tmp_path) is not None


def test_a_switch_that_comes_while_a_folder_is_read_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "gone").mkdir()
    answers = iter([None, (["new"], ["gone"]), (["new"], ["gone"])])
    monkeypatch.setattr(sources, "_parts", lambda _: next(answers))
    assert sources.entries(tmp_path) == {
        "kept": tmp_path / "kept",
        "new": tmp_path / SWITCH / "new/new",
    }


def test_a_switch_brings_features_alone(tmp_path: Path) -> None:
    for part in ("new/feature", "gone", "old"):
        (tmp_path / SWITCH / part).mkdir(parents=True)
    assert sources.is_switch(tmp_path / SWITCH)
    (tmp_path / SWITCH / "new/No feature").mkdir()
    assert not sources.is_switch(tmp_path / SWITCH)


def test_a_line_with_any_quotes_may_set_a_key(tmp_path: Path) -> None:
    place = write_feature(tmp_path, {})
    for line in ('package = "x"', "\t'package' = 'x'", ' "package" ="x"'):
        (place / "feature.toml").write_text(line)
        assert sources._document(place, b"package") == line.encode()
    for line in ("", "title = 'a package'", "packages = 1", "Xpackage = 1"):
        (place / "feature.toml").write_text(line)
        assert sources._document(place, b"package") == b""
