"""What is written of a feature is read back as it was meant, and replaces nothing of somebody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features import sources
from overlay._features.feature_toml import read_document, read_fields
from overlay._features.model import FILE_SCOPE, Feature, Hunk, UpstreamTest, WholeFile
from overlay._features.patch_file import parse_patch
from overlay._features.patch_headers import REPEATED
from overlay._features.sources import ErrorList
from overlay.authoring import disk
from overlay.authoring.composing import compose
from overlay.authoring.writing import (
    Expected,
    FeatureFolder,
    FeatureText,
    check_files,
    check_folder,
    expect_id,
    expect_words_kept,
    patch_bytes,
    render_patch,
    render_toml,
    require_free,
    toml_string,
    with_tests,
    write_folder,
)
from overlay.errors import OverlayError, PatchFormatErrors, UsageError
from overlay.package import VLLM, ReleaseRange, package_named
from overlay.untrusted import parse_toml

SPAN = ReleaseRange.parse("0.25.0..0.27.0", VLLM)
A, NEW = "vllm/a.py", "vllm/new.py"
ADDED = {f"files/{NEW}": b"NEW = 1\n"}

#: Texts with all that TOML writes otherwise.
WORDS = st.text(
    st.sampled_from('ab \\"\n\r\t\x00\x0b\x0c\x1f\x7f\x85\u2028é')
    | st.characters(exclude_categories=["Cs"])
)
VALUES = st.recursive(
    WORDS | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=5,
)


@given(
    title=WORDS,
    why=WORDS,
    keys=st.fixed_dictionaries(
        {},
        optional={
            "needs": VALUES,
            "fault": st.dictionaries(WORDS, VALUES, max_size=2),
            "switches": st.lists(
                st.dictionaries(WORDS, VALUES, max_size=2), min_size=1, max_size=2
            ),
        },
    ),
    lines=st.lists(WORDS, max_size=3),
    share=st.floats(0, 1),
)
@example("a", '"""' * 2 + '\\"""\\', {"fault": {"a": 1}, "needs": ["a"]}, ["\x7f"], 2 / 3)
def test_toml_says_what_was_meant(
    title: str, why: str, keys: dict[str, Any], lines: list[str], share: float
) -> None:
    test = UpstreamTest(A, "B.c", lines=tuple(lines), share=share)
    text = FeatureText("fix", title, why, SPAN, "https://a.invalid", "0.30.0", (test,), keys=keys)
    table = parse_toml(render_toml(text))
    assert table.pop("why").strip() == (why.strip() or title).strip()
    (told,) = table.pop("upstreamed")
    assert told.pop("share") == pytest.approx(share, rel=1e-5, abs=1e-300)
    assert told == {"path": A, "scope": "B.c", "lines": lines}
    assert table == {
        "id": "fix",
        "title": title,
        "upstream": "https://a.invalid",
        "releases": "0.25.0..0.27.0",
        "merged": "0.30.0",
        **keys,
    }


def test_only_another_package_than_vllm_is_named() -> None:
    text = FeatureText("fix", "a", "b", SPAN)
    assert parse_toml(render_toml(text)).keys() == {"id", "title", "why", "releases"}
    other = FeatureText("fix", "a", "b", SPAN, package=package_named("flashinfer"))
    assert parse_toml(render_toml(other))["package"] == "flashinfer"


def test_a_text_that_toml_cannot_hold_is_named_in_part() -> None:
    with pytest.raises(UsageError, match=r"^b\\xff(a{198}): expected a text"):
        toml_string("b\udcff" + "a" * 300)
    assert toml_string("é\x7f") == '"é\\u007f"'


def test_tests_by_hand_and_their_words_stay_where_they_are() -> None:
    toml = b'id = "fix"\n\n[[upstreamed]]\ncontains = "a"  # ours\n\n\n[[upstreamed]]\nlines = []\n'
    made = with_tests(toml, (UpstreamTest(A, "B", lines=("c",)),))
    head = toml[: toml.index(b"\n\n\n")]
    assert made.startswith(head + b'\n\n[[upstreamed]]\npath = "vllm/a.py"\n')
    assert with_tests(toml, ()) == head + b"\n"
    dos = b'id = "fix"  # MAX\r\n\n'
    assert with_tests(dos, ()) == dos[:-1]
    assert with_tests(dos.replace(b"\r", b""), ()) == b'id = "fix"  # MAX\n'
    for odd in (b"upstreamed = 1\n", b"upstreamed = [1]\n"):
        with pytest.raises(UsageError, match="whose lines are indented"):
            with_tests(odd, (UpstreamTest(A, "B", lines=("c",)),))


BASE = b"".join(b"line%d = 0\n" % number for number in range(1, 40))
HEADERS = {"Description": "A", "Origin": "b", "Last-Update": "2026-01-01"}


def test_the_lines_of_a_patch_are_counted_from_both_texts() -> None:
    after = BASE.replace(b"line3 = 0\n", b"line3 = 1\nmore = 1\nmore = 2\n")
    after = after.replace(b"line20 = 0\n", b"").replace(b"line39 = 0\n", b"line39 = 1")
    hunks = compose(BASE, after)
    text = render_patch(HEADERS, A, hunks[::-1])
    assert [line for line in text.split("\n") if line.startswith("@@")] == [
        "@@ -1,6 +1,8 @@ <module>",
        "@@ -17,7 +19,6 @@ <module>",
        "@@ -36,4 +37,4 @@ <module>",
    ]
    assert text.endswith("-line39 = 0\n+line39 = 1\n\\ No newline at end of file\n")
    back = render_patch(HEADERS, A, compose(after, BASE))
    assert back.endswith("-line39 = 1\n\\ No newline at end of file\n+line39 = 0\n")
    apart = [hunk._replace(scope=scope) for hunk, scope in zip(hunks, "zyx", strict=True)]
    headings = [line[-1] for line in render_patch(HEADERS, A, apart).split("\n") if "@@" in line]
    assert headings == ["z", "y", "x"]
    lines = tuple(hunk._replace(patch_line=0) for hunk in parse_patch(text, "x").hunks)
    assert lines == tuple(hunk._replace(patch_line=0) for hunk in hunks)


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("order", ["-+", "+-"])
def test_ends_without_a_newline_are_marked(order: str, *, before: bool, after: bool) -> None:
    lines = ((" ", "a"), (order[0], "b"), (order[1], "c"))
    hunk = Hunk("A", lines, 1, 0, pre_unfinished=before, post_unfinished=after)
    (again,) = parse_patch(render_patch(HEADERS, A, (hunk,)), "x").hunks
    assert again._replace(patch_line=0) == hunk


def test_bytes_that_are_no_utf8_stay_as_they_are() -> None:
    hunk = Hunk("A", ((" ", "a"), ("+", "'\udce9'")), 1, 0)
    assert b"\n+'\xe9'\n" in patch_bytes(HEADERS, A, (hunk,))


@pytest.mark.parametrize("after", [b"\0new", b"", None])
def test_a_whole_file_is_read_back(after: bytes | None) -> None:
    whole = Hunk(FILE_SCOPE, (), 1, 1, whole=WholeFile.of(b"\0old", after))
    text = patch_bytes(HEADERS, "vllm/a.bin", (whole,)).decode()
    assert parse_patch(text, "x").hunks[0].whole == whole.whole
    assert ("deleted file mode 100644" in text) is (after is None)
    assert (" 100644\nGIT binary patch\n" in text) is (after is not None)


#: Values of headers, a line each; and of lines of code.
LINES = st.lists(st.text(st.sampled_from("ab. \x0c\x85\u2028")).map(str.strip), min_size=1)


@given(LINES, st.sampled_from(sorted(REPEATED)))
def test_values_of_a_header_that_repeats_stay_apart(lines: list[str], name: str) -> None:
    headers = {**HEADERS, name: "\n".join(lines)}
    text = render_patch(headers, A, compose(BASE, BASE.replace(b"3 = 0", b"3 = 1")))
    assert parse_patch(text, "x").headers == headers
    assert not any(line.endswith(" ") for line in text.split("---")[0].split("\n"))


def test_long_lines_of_a_header_are_folded_at_words() -> None:
    long, words = "a" * 100, "abcd-ef " * 27
    headers = {**HEADERS, "Description": f"{words}\n\n  {words}\n{long} b\n{'c' * 77}\n{'d ' * 39}"}
    head = render_patch(headers, A, ()).split("Origin:")[0].split("\n")[:-1]
    assert head[0] == f"Description: {words.strip()}"
    assert head[1] == " ."
    assert " ".join("".join(head[2:5]).split()) == words.strip()
    assert all(len(line) <= 78 for line in head[2:5])
    assert len(head[2]) > 71  # as much as there is room for
    assert head[5:] == [f" {long}", " b", f" {'c' * 77}", f" {'d ' * 39}".rstrip()]
    assert render_patch({**HEADERS, "Description": " "}, A, ()).startswith("Description:\nOrigin")


def folder(files: dict[str, bytes] = ADDED, id_: str = "fix", **more: Any) -> FeatureFolder:
    return FeatureFolder(FeatureText(id_, "a", "b", SPAN, **more), files)


def test_what_the_reader_refuses_is_named_as_below_the_patches() -> None:
    with pytest.raises(PatchFormatErrors) as caught:
        check_folder(folder({"10-a/0.25.0..0.27.0.patch": b"Description: a\nfoo\n"}))
    assert {error.file for error in caught.value.errors} == {"fix/10-a/0.25.0..0.27.0.patch"}
    assert 2 in [error.line for error in caught.value.errors]
    with pytest.raises(UsageError, match="paths inside its folder"):
        check_files("fix", {"../feature.toml": b""})


def test_some_of_what_is_not_read_back_is_named() -> None:
    patch = render_patch(HEADERS, A, compose(BASE, BASE.replace(b"3 = 0", b"3 = 1"))).encode()
    files = {"10-a/0.25.0..0.26.0.patch": patch, "20-a/0.25.0..0.27.0.patch": patch}
    good = Expected("10-a", "0.26.0", BASE, BASE.replace(b"3 = 0", b"3 = 1"))
    toml = render_toml(FeatureText("fix", "a", "b", SPAN)).encode()
    made = {"feature.toml": toml, **files}
    assert isinstance(check_files("fix", made, [good]), Feature)
    for number, words in (
        (5, r"10-a on 0\.25\.0\. Nothing"),
        (7, r"10-a on 0\.25\.0 and 2 more\."),
    ):
        with pytest.raises(OverlayError, match=words):
            check_files("fix", made, [good._replace(release="0.25.0", after=b"")] * number)
    with pytest.raises(OverlayError, match=r"10-a on 0\.27\.0"):
        check_files("fix", made, [good._replace(release="0.27.0")])
    with pytest.raises(OverlayError, match=r"10-a on 0\.26\.0"):
        check_files("fix", made, [good._replace(after=None)])


def test_a_feature_is_replaced_if_that_is_asked_for(tmp_path: Path) -> None:
    place = write_folder(folder(), tmp_path)
    assert place == tmp_path / "fix"
    with pytest.raises(UsageError, match="expected no feature of that id"):
        write_folder(folder(), tmp_path)
    assert write_folder(folder({f"files/{A}": b""}), tmp_path, update=True) == place
    assert disk.files_below(place) == ["feature.toml", f"files/{A}"]


def test_what_a_person_said_of_a_feature_is_not_replaced(tmp_path: Path) -> None:
    write_folder(folder(keys={"needs": ["a"]}), tmp_path)
    expect_words_kept(folder(keys={"needs": ["b"]}, merged="0.30.0"), tmp_path)
    expect_words_kept(folder(id_="other"), tmp_path)
    expect_words_kept(folder(), tmp_path / "missing")
    with pytest.raises(UsageError, match=r"fix: --update .*, and needs stands there alone"):
        write_folder(folder(), tmp_path, update=True)
    toml = tmp_path / "fix/feature.toml"
    toml.write_bytes(b'[[upstreamed]]\nlines = ["a"]\n')
    expect_words_kept(folder(), tmp_path)
    toml.write_bytes(b'[[upstreamed]]\nlines = ["a"]\n[[upstreamed]]\ncontains = "b"\n')
    with pytest.raises(UsageError, match=r"\[\[upstreamed\]\] without lines stands there alone"):
        expect_words_kept(folder(), tmp_path)


@pytest.mark.parametrize("id_", ["Fix", "shared", "../fix"])
@pytest.mark.parametrize("option", ["", "--id"])
def test_an_id_that_cannot_be_one_is_refused(tmp_path: Path, id_: str, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_free(tmp_path, id_, update=True, option=option)
    assert str(caught.value).startswith(f"{option} '{id_}' " if option else f"'{id_}' ")
    with pytest.raises(UsageError, match=f"^'{id_}' "):
        expect_id(id_)


def test_an_id_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, patches = tmp_path / "shipped", tmp_path / "ours"
    monkeypatch.setattr(sources, "shipped_folder", lambda: shipped)
    write_folder(folder(id_="demo"), shipped)
    with pytest.raises(UsageError, match=r"comes with the overlay, .*: choose another --id$"):
        require_free(patches, "demo", update=True, option="--id")
    with pytest.raises(UsageError, match="found one; choose another id, or pass --update"):
        require_free(shipped, "demo", update=False)
    require_free(shipped, "demo", update=True)
    require_free(patches, "fix", update=False)  # nothing is there
    patches.mkdir()
    require_free(patches, "fix", update=False)
    for make, what in ((Path.touch, "a file:"), (Path.mkdir, r"a folder without feature\.toml:")):
        make(patches / "fix")
        with pytest.raises(UsageError, match=f"found {what} choose another id"):
            require_free(patches, "fix", update=True)
        (patches / "fix").unlink() if what == "a file:" else (patches / "fix").rmdir()


@pytest.mark.parametrize(
    "name", ["README.md", "10-a/NOTES.md", "10 a/b/0.25.0.patch", "1a-b/a.patch", "origin/a.txt"]
)
def test_files_of_somebodys_are_not_replaced(tmp_path: Path, name: str) -> None:
    write_folder(folder(), tmp_path)
    for own in (
        "10-a/0.25.0..0.27.0.patch",
        "origin/01.patch",
        "origin/base/vllm/a.py",
        ".DS_Store",
    ):
        (tmp_path / "fix" / own).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fix" / own).touch()
    (tmp_path / "fix/__pycache__").mkdir()
    (tmp_path / "fix/__pycache__/a.pyc").touch()
    require_free(tmp_path, "fix", update=True)
    place = tmp_path / "fix" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    for make in (Path.touch, lambda path: path.symlink_to("nowhere")):
        make(place)
        with pytest.raises(UsageError, match=f"{name} is not of its patches"):
            require_free(tmp_path, "fix", update=True)
        place.unlink()
    for name in "hgfe":
        (tmp_path / "fix" / name).touch()
    with pytest.raises(UsageError, match="and e, f, g is not of its patches"):
        require_free(tmp_path, "fix", update=True)


def test_the_reader_of_features_reads_what_is_written(tmp_path: Path) -> None:
    fault = {"symptom": "s", "affects": "a", "evidence": "e", "reports": ["https://a.invalid"]}
    write_folder(folder(keys={"fault": fault, "required": True}), tmp_path)
    errors = ErrorList()
    document = read_document(tmp_path / "fix/feature.toml", errors)
    assert document is not None
    feature = read_fields(document)
    assert not errors
    assert feature.required
    assert feature.fault is not None
    assert feature.fault.reports == ("https://a.invalid",)
    assert Version("0.26.0") in feature.releases
