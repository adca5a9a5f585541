"""What messages show: no secrets of URLs, and no line that nobody can read."""

from __future__ import annotations

import errno
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import (
    MAX_LINE,
    MAX_LINES,
    OverlayError,
    PatchFormatError,
    PatchFormatErrors,
    bounded,
    described,
    without_secrets,
)
from overlay.untrusted import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://host/simple/", "https://host/simple/"),
        ("https://u:s3cret@host:8/x?t=s3cret#s3cret", "https://host:8/x"),
        ("https://s3cret@host/x", "https://host/x"),
        ("http://u:s3/cret@host/x", "http://host/x"),
        ("http://u:s3#cret@host/x: it is bad", "http://host/x: it is bad"),
        ("http://u:s3cret@[", "http://["),
        ("http://[::1]:80/a?s3cret", "http://[::1]:80/a"),
        ("u:s3cret@host/simple", "host/simple"),
        ("https://host/@scope/x@1.0", "https://host/@scope/x@1.0"),
        ("see 'https://h/a?b=s3cret', (https://h/c#s3cret).", "see 'https://h/a', (https://h/c)."),
        ("https://host/x.diff;token=s3cret", "https://host/x.diff"),
        ("http://u:s3'cr\"et<@host/x: it is bad", "http://host/x: it is bad"),
        ("https:u:s3cret@host/x.diff", "host/x.diff"),
        ("exceeded with url: /x.diff?t=s3cret (Caused by", "exceeded with url: /x.diff (Caused by"),
        ("expected a/b.py:12: found x@y, what? #1", "expected a/b.py:12: found x@y, what? #1"),
    ],
)
def test_logins_queries_and_fragments_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


SECRET = st.text(string.ascii_letters + string.digits + "%-._~!$&*+,;=:", min_size=8)


@given(SECRET, st.sampled_from(["https", "http", "git+ssh", "ftp"]), st.booleans())
def test_no_secret_of_a_url_is_shown_wherever_it_stands(
    secret: str, scheme: str, sentence: bool
) -> None:
    secret = f"S3{secret}"
    for url in (
        f"{scheme}://{secret}@host/x",
        f"{scheme}://user:{secret}@host:80/x",
        f"{scheme}://host/x?token={secret}",
        f"{scheme}://host/x?{secret}#y",
        f"{scheme}://host#{secret}",
        f"{scheme}://host/x;{secret}?y",
    ):
        text = f"expected that {url} answers" if sentence else url
        assert secret.rstrip(":.,;") not in without_secrets(text)
        assert without_secrets(without_secrets(text)) == without_secrets(text)


@given(st.lists(st.text("ax \u00e9/", max_size=5000), max_size=5), st.integers(1, 600))
def test_no_message_has_a_line_or_a_number_of_lines_that_nobody_reads(
    parts: list[str], times: int
) -> None:
    text = "\n".join(parts * times)[:300_000]
    for said in (str(OverlayError(text)), str(PatchFormatErrors([PatchFormatError("f", 1, text)]))):
        assert max(map(len, said.split("\n"))) <= MAX_LINE
        assert said.count("\n") <= MAX_LINES
    assert max(map(len, printable(text, lines=True).split("\n"))) <= MAX_LINE
    assert bounded(bounded(text)) == bounded(text)


def test_a_message_is_cut_in_the_middle_and_keeps_the_next_step() -> None:
    said = str(OverlayError(f"{'long/' * 900}: expected a file, found {'9' * 9000}; remove it"))
    assert said.startswith("long/")
    assert said.endswith("; remove it")
    assert ": expected a file, found 9" in said


def test_what_is_named_below_a_working_folder_that_is_gone_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory", "./x.new")
    assert described(gone).startswith("./x.new: No such file")
    (tmp_path / "here").rmdir()
    assert described(gone).startswith("the working folder is gone; cd to")
    assert described(FileNotFoundError(errno.ENOENT, "No such", "/x")).startswith("/x: No such")


def test_what_even_the_owner_may_not_do_is_told_apart() -> None:
    assert "chattr -i" in described(PermissionError(errno.EPERM, "Not permitted", "/x"))
    assert "chattr" not in described(PermissionError(errno.EACCES, "Denied", "/x"))
