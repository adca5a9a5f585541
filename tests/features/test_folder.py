"""Patches folders as features."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import overlay
from overlay._features import folder as features
from overlay._features import sources
from overlay._features.model import UpstreamTest
from overlay.errors import OverlayError, PatchFormatErrors, UsageError
from tests.support.patches import hunk, patch_text, write_feature

PATCH = patch_text("vllm/a.py", hunk([" a", "+b"], "f"))
TOPIC = "01-x/0.20.0..0.33.0.patch"


def errors(*folders: Path) -> list[str]:
    with pytest.raises(PatchFormatErrors) as caught:
        features.load(folders)
    return [str(error) for error in caught.value.errors]


def test_a_whole_feature(tmp_path: Path) -> None:
    write_feature(
        tmp_path,
        {
            "01-x/0.20.0..0.20.2.patch": PATCH,
            "01-x/0.21.0..0.33.0.patch": patch_text("vllm/b.py", hunk([" a", "-c", "+d"], "g")),
            "02-y/0.20.0..0.33.0.patch": PATCH,
            "files/vllm/v1/__init__.py": "",
            "files/vllm/v1/new.py": b"x = 1\r\n",
            "files/vllm/v1/__pycache__/new.cpython-311.pyc": b"\x00",
            "files/.mypy_cache/CACHEDIR.TAG": "left by a tool",
            "README.md": "words",
        },
        toml='needs = ["V1"]\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "A.f"\ncontains = "x"\n'
        '[[upstreamed]]\npath = "vllm/b.py"\ncontains = "y"\n',
    )
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (feature,) = features.load([tmp_path])
    assert (feature.id, feature.title, feature.why) == ("demo", "A test", "To test.")
    assert str(feature.releases) == "0.20.0..0.33.0"
    assert feature.upstream == "https://example.invalid/1"
    assert feature.needs == ("V1",)
    assert feature.origin == str(tmp_path)
    assert feature.upstream_tests == (
        UpstreamTest("vllm/a.py", "A.f", "x"),
        UpstreamTest("vllm/b.py", "<module>", "y"),
    )
    assert [topic.name for topic in feature.topics] == ["01-x", "02-y"]
    assert [str(v.releases) for v in feature.topics[0].variants] == [
        "0.20.0..0.20.2",
        "0.21.0..0.33.0",
    ]
    assert feature.topics[0].variants[0].patch.name == "demo/01-x/0.20.0..0.20.2.patch"
    assert [(file.path, file.content) for file in feature.added] == [
        ("vllm/v1/__init__.py", b""),
        ("vllm/v1/new.py", b"x = 1\r\n"),
    ]
    assert len(feature.digest) == 64


def test_folders_in_the_order_given_and_ids_within_them(tmp_path: Path) -> None:
    for folder, ids in (("one", ("b", "d")), ("two", ("a", "c"))):
        for each in ids:
            write_feature(tmp_path / folder, {TOPIC: PATCH}, id=each)
    found = features.load([tmp_path / "one", tmp_path / "two"])
    assert [feature.id for feature in found] == ["b", "d", "a", "c"]
    assert features.load([]) == ()


def test_an_id_that_stands_twice_names_both_folders(tmp_path: Path) -> None:
    first = write_feature(tmp_path / "one", {TOPIC: PATCH})
    second = write_feature(tmp_path / "two", {TOPIC: PATCH})
    (error,) = errors(tmp_path / "one", tmp_path / "two")
    assert str(first) in error
    assert str(second) in error


def test_the_shipped_folder_is_that_of_this_checkout() -> None:
    folder = sources.shipped_folder()
    assert folder == Path(overlay.__file__).resolve().parent.parent / "patches"
    assert (folder / "README.md").is_file()


def test_an_installation_without_the_shipped_patches_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "__file__", str(tmp_path / "overlay" / "__init__.py"))
    (tmp_path / "patches").mkdir()  # somebody else's, in site-packages
    with pytest.raises(OverlayError, match="reinstall"):
        sources.shipped_folder()
    (tmp_path / "overlay" / "patches").mkdir(parents=True)
    assert sources.shipped_folder() == tmp_path / "overlay" / "patches"
    write_feature(tmp_path / "overlay" / "patches", {TOPIC: PATCH})
    (feature,) = features.load([sources.shipped_folder()])
    assert feature.origin == "shipped"


@pytest.mark.parametrize(
    ("files", "toml", "problem"),
    [
        ({}, "", "the feature does nothing"),
        ({TOPIC: PATCH}, 'colour = "red"', "feature.toml:6: unknown key 'colour'"),
        ({TOPIC: PATCH}, "id = 3", "feature.toml:6: it is not TOML"),
        ({TOPIC: PATCH}, "needs = 3", "feature.toml:6: needs: expected a list of texts"),
        ({TOPIC: PATCH}, 'needs = [""]', "feature.toml:6: needs: expected a list of texts"),
        ({TOPIC: PATCH}, "upstreamed = 1", "feature.toml:6: upstreamed: expected tables"),
        ({}, '[[upstreamed]]\npath = "vllm/a.py"', "needs a text as contains"),
        ({}, '[[upstreamed]]\npath = "a.py"\ncontains = "x"', "outside vllm/"),
        (
            {},
            '[[upstreamed]]\npath = "vllm/a.py"\ncontains = "x"\nscpe = "f"',
            "feature.toml:9: unknown key 'scpe'",
        ),
        ({TOPIC: PATCH}, "builds = 1", "feature.toml:6: builds: expected tables"),
        ({TOPIC: PATCH}, '[[builds]]\npath = "vllm/a.py"', "[[builds]] needs a text as name"),
        (
            {TOPIC: PATCH},
            '[[builds]]\nname = "n"\npath = "a.py"\ncontains = "x"\ntext = "t"',
            "outside vllm/",
        ),
        (
            {TOPIC: PATCH},
            '[[builds]]\nname = "n"\npath = "vllm/a.py"\ncontains = "x"\ntext = "t"\nlines = 1',
            "unknown key 'lines' in [[builds]]",
        ),
        ({"01-x/0.20.0.patch": PATCH}, "", "not a closed range"),
        ({"01-x/0.20.0...patch": PATCH}, "", "not a closed range"),
        ({"01-x/0.21.0..0.20.0.patch": PATCH}, "", "ends before it begins"),
        ({"01-x/0.20.0rc1..0.21.0.patch": PATCH}, "", "pre-release"),
        ({"01-x/0.20.0..0.34.0.patch": PATCH}, "", "its range leaves the feature's"),
        ({"01-x/0.19.0..0.33.0.patch": PATCH}, "", "its range leaves the feature's"),
        (
            {"01-x/0.20.0..0.21.0.patch": PATCH, "01-x/0.21.0..0.33.0.patch": PATCH},
            "",
            "its range overlaps that of demo/01-x/0.20.0..0.21.0.patch",
        ),
        ({TOPIC: PATCH.replace("Origin", "Orgin")}, "", f"{TOPIC}:2: unknown header Orgin"),
        ({TOPIC: b"Description: \xff\n"}, "", f"{TOPIC}:1: it is not UTF-8"),
        ({TOPIC: PATCH, "01-x/notes.txt": "x"}, "", "expected only <first>..<last>.patch"),
        ({"x/0.20.0..0.33.0.patch": PATCH}, "", "NN-<topic>"),
        ({"1-x/0.20.0..0.33.0.patch": PATCH}, "", "NN-<topic>"),
        ({TOPIC: PATCH, "0.20.0..0.33.0.patch": PATCH}, "", "NN-<topic>"),
        ({TOPIC: PATCH, "files/setup.py": ""}, "", "outside vllm/"),
        ({TOPIC: PATCH, "files/vllm/a.so": ""}, "", "neither a module nor a data file"),
        ({TOPIC: PATCH, "files/vllm/A.py": ""}, "", "are one file where file names have no case"),
        ({TOPIC: PATCH, "files/vllm/a.py": ""}, "", "which the feature adds"),
    ],
)
def test_malformed_features(
    tmp_path: Path, files: dict[str, str | bytes], toml: str, problem: str
) -> None:
    write_feature(tmp_path, files, toml=toml)
    found = errors(tmp_path)
    assert any(problem in error for error in found), found
    assert all(error.startswith(str(tmp_path)) for error in found)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('id = "demo"', 'id = "other"', ":1: id: expected the folder's name, 'demo'"),
        ('id = "demo"', 'id = "Demo"', ":1: id: 'Demo' is not lower-case"),
        ('title = "A test"', "", "the key title is missing"),
        ('title = "A test"', "title = 3", ":2: title: expected a text, found 3"),
        ('why = "To test."', 'why = " "', ":3: why: expected a text"),
        ('"https://example.invalid/1"', '"pull 1"', ":4: upstream: 'pull 1' is not a URL"),
        ('"0.20.0..0.33.0"', '"0.20.0.."', ":5: releases: '0.20.0..' is not a closed range"),
        ('"0.20.0..0.33.0"', '"0.20.0..x"', ":5: releases: 'x' is not a release"),
    ],
)
def test_malformed_feature_toml(tmp_path: Path, old: str, new: str, problem: str) -> None:
    toml = write_feature(tmp_path, {TOPIC: PATCH}) / "feature.toml"
    assert old in toml.read_text()
    toml.write_text(toml.read_text().replace(old, new))
    found = errors(tmp_path)
    assert any(problem in error for error in found), found


def test_an_empty_feature_toml_and_an_empty_topic(tmp_path: Path) -> None:
    folder = write_feature(tmp_path, {})
    (folder / "feature.toml").write_text("")
    (folder / "01-x").mkdir()
    assert sorted(error.split(": ", 1)[1][:20] for error in errors(tmp_path)) == [
        "a topic without a pa",
        "it is empty; expecte",
    ]


def test_what_lies_about_in_a_patches_folder_is_named(tmp_path: Path) -> None:
    write_feature(tmp_path, {TOPIC: PATCH})
    (tmp_path / "0001-fix.patch").write_text("")
    (tmp_path / "scripts").mkdir()
    found = errors(tmp_path)
    assert [error.split(": ")[0] for error in found] == [
        str(tmp_path / "0001-fix.patch"),
        str(tmp_path / "scripts"),
    ]


@pytest.mark.parametrize("name", ["demo", "demo/01-x", f"demo/{TOPIC}", "demo/feature.toml"])
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    write_feature(tmp_path / "there", {TOPIC: PATCH})
    shutil.copytree(tmp_path / "there", tmp_path / "here")
    place = tmp_path / "here" / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(tmp_path / "there" / name)
    assert any(
        f"{place}: expected a plain file or folder, found a sym" in e
        for e in errors(tmp_path / "here")
    )


def test_special_files_are_refused(tmp_path: Path) -> None:
    write_feature(tmp_path, {TOPIC: PATCH, "files/vllm/a2.py": ""})
    os.mkfifo(tmp_path / "demo" / "files" / "vllm" / "pipe.py")
    (error,) = errors(tmp_path)
    assert "a special file" in error


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found nothing"):
        features.load([tmp_path / "none"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="found no folder"):
        features.load([tmp_path / "file"])


def test_every_error_of_every_folder_is_reported(tmp_path: Path) -> None:
    write_feature(tmp_path / "one", {TOPIC: "", "02-y/x.patch": PATCH})
    write_feature(tmp_path / "two", {"files/vllm/a.so": ""}, id="other", toml="x = 1")
    found = errors(tmp_path / "one", tmp_path / "two")
    for expected in ("Description is missing", "not a closed range", "'x'", "nor a data file"):
        assert any(expected in error for error in found), expected


def test_holes_are_named_release_by_release(tmp_path: Path) -> None:
    write_feature(
        tmp_path,
        {
            "01-x/0.20.0..0.20.1.patch": PATCH,
            "01-x/0.22.0..0.32.0.patch": PATCH,
            "02-y/0.20.0..0.33.0.patch": PATCH,
        },
    )
    (feature,) = features.load([tmp_path])
    assert [str(hole) for hole in features.holes(feature)] == [
        "01-x has no variant for 0.20.2",
        "01-x has no variant for 0.21.0",
        "01-x has no variant for 0.33.0",
    ]
    assert features.holes(feature, ["0.19.0", "0.22.0", "0.34.0"]) == ()


def test_the_digest_is_over_what_the_feature_does(tmp_path: Path) -> None:
    contents: dict[str, str | bytes] = {
        TOPIC: PATCH,
        "02-y/0.20.0..0.33.0.patch": PATCH,
        "files/vllm/n.py": "x = 1\n",
        "files/vllm/m.py": "x = 2\n",
    }
    digests: dict[str, str] = {}

    def digest(case: str, files: dict[str, str | bytes], releases: str = "0.20.0..0.33.0") -> str:
        write_feature(tmp_path / case, files, releases=releases)
        (feature,) = features.load([tmp_path / case])
        digests[case] = feature.digest
        return feature.digest

    base = digest("base", contents)
    assert digest("elsewhere, written in another order", dict(reversed(contents.items()))) == base
    reworded = PATCH.replace("A test", "Other words").replace("@@ -1,", "@@ -9,")
    assert digest("words", {**contents, TOPIC: reworded, "README.md": "x"}) == base
    digest("scope", {**contents, TOPIC: PATCH.replace("@@ f", "@@ g")})
    digest("line", {**contents, TOPIC: PATCH.replace("+b", "+c")})
    digest("path", {**contents, TOPIC: PATCH.replace("vllm/a.py", "vllm/b.py")})
    digest("unfinished", {**contents, TOPIC: PATCH + "\\ No newline at end of file\n"})
    digest(
        "range",
        {**{k: v for k, v in contents.items() if k != TOPIC}, "01-x/0.20.0..0.32.0.patch": PATCH},
    )
    digest("module", {**contents, "files/vllm/n.py": "x = 3\n"})
    digest("module's path", {**contents, "files/vllm/k.py": "x = 1\n"})
    write_feature(
        tmp_path / "test",
        contents,
        toml='[[upstreamed]]\npath = "vllm/a.py"\ncontains = "x"',
    )
    digests["test"] = features.load([tmp_path / "test"])[0].digest
    different = [value for case, value in digests.items() if value != base]
    assert len(set(different)) == len(digests) - 3


def test_the_shipped_features_are_well_formed_and_without_holes() -> None:
    for feature in features.load([sources.shipped_folder()]):
        assert features.holes(feature) == (), feature.id
        assert feature.origin == "shipped"


def test_a_folder_that_is_named_twice_is_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_feature(tmp_path / "one", {"01-x/0.20.0..0.33.0.patch": PATCH}, id="first")
    write_feature(tmp_path / "two", {"01-x/0.20.0..0.33.0.patch": PATCH}, id="second")
    (tmp_path / "link").symlink_to("one")
    monkeypatch.chdir(tmp_path)
    names = ["one", "two", str(tmp_path / "two"), "two/../one/", "link"]
    found = features.load([Path(name) for name in names])
    assert [feature.id for feature in found] == ["first", "second"]
    assert [feature.origin for feature in found] == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    toml = write_feature(tmp_path, {TOPIC: PATCH}) / "feature.toml"
    toml.write_bytes(b"\xef\xbb\xbf" + toml.read_bytes())
    (feature,) = features.load([tmp_path])
    assert feature.id == "demo"


def test_a_change_that_was_never_proposed_needs_no_url(tmp_path: Path) -> None:
    toml = write_feature(tmp_path, {TOPIC: PATCH}) / "feature.toml"
    toml.write_text(toml.read_text().replace('upstream = "https://example.invalid/1"\n', ""))
    (feature,) = features.load([tmp_path])
    assert feature.upstream == ""


def test_brackets_without_end_are_an_error(tmp_path: Path) -> None:
    toml = write_feature(tmp_path, {TOPIC: PATCH}) / "feature.toml"
    toml.write_text("a = " + "[" * 200_000)
    (error,) = errors(tmp_path)
    assert "nested too deeply" in error
