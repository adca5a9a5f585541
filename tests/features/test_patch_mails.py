"""Mails of git format-patch as patches."""

from __future__ import annotations

import pytest

from overlay._features.patch_file import parse_patch
from overlay._features.patch_headers import author, last_update
from overlay.authoring.writing import render_patch
from overlay.errors import PatchFormatErrors
from tests.support.patches import GOOD_PATCH


def errors(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(PatchFormatErrors) as caught:
        parse_patch(text, "x.patch")
    assert all(str(error).startswith("x.patch") for error in caught.value.errors)
    return [(error.line, error.problem) for error in caught.value.errors]


MAIL = (
    """\
From 8f1d2c3b4a5968778695a4b3c2d1e0f9a8b7c6d5 Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?J=C3=BCrgen?= <j@example.invalid>
Date: Fri, 20 Nov 2026 10:00:00 +0100
Subject: [PATCH 1/2] Call the graphs
 before the first pass
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

copy the tensor once, rename nothing:

--- a list of dashes is not a file ---
Base: 0.26.0
Signed-off-by: One <1@example.invalid>
Signed-off-by: Two <2@example.invalid>
---
 vllm/a.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

"""
    + GOOD_PATCH[GOOD_PATCH.index("diff --git") :]
    + "-- \n2.45.1\n"
)


def test_a_mail_of_git_format_patch_is_a_patch() -> None:
    patch = parse_patch(MAIL, "x")
    assert patch.hunks[0].lines == parse_patch(GOOD_PATCH, "x").hunks[0].lines
    assert author(patch.headers) == "Jürgen <j@example.invalid>"
    assert patch.headers["Subject"].partition("\n")[0] == "[PATCH 1/2] Call the graphs"
    assert last_update(patch.headers) == "2026-11-20"
    assert patch.headers["Base"] == "0.26.0"
    assert patch.headers["Signed-off-by"].splitlines() == [
        "One <1@example.invalid>",
        "Two <2@example.invalid>",
    ]


def test_what_a_mail_says_is_kept_where_it_is_written_again() -> None:
    patch = parse_patch(MAIL, "x")
    again = parse_patch(render_patch(patch.headers, patch.path, patch.hunks), "x")
    assert again.headers == patch.headers
    text = render_patch(patch.headers, patch.path, patch.hunks)
    assert "\nSigned-off-by: One <1@example.invalid>\nSigned-off-by: Two <2@" in text
    assert " copy the tensor once, rename nothing:\n .\n" in text


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("Fri, 20 Nov 2026 10:00:00 +0100", "yesterday", 3, "Date is 'yesterday'"),
        ("Date: Fri, 20 Nov 2026 10:00:00 +0100\n", "", 1, "header Last-Update is missing"),
        ("Encoding: 8bit", "Encoding: base64", 8, "encoded for transport (base64)"),
        ("MIME-Version", "Mimes", 6, "unknown header Mimes"),
        ("Base: 0.26.0", "Base: new", 13, "Base: "),
    ],
)
def test_a_malformed_mail_is_named_with_its_line(
    old: str, new: str, line: int, problem: str
) -> None:
    found = errors(MAIL.replace(old, new))
    assert any(at == line and problem in text for at, text in found), found


def test_an_author_may_stand_for_the_origin() -> None:
    text = GOOD_PATCH.replace("Origin: vllm-overlay", "Author: us")
    assert parse_patch(text, "x").headers["Author"] == "us"
