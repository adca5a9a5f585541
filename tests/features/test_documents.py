"""Whatever lies in a patches folder, reading it raises nothing but the project's own errors."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlay._features import folder as features
from overlay._features.sources import further_packages
from overlay._features.switches import declarations
from overlay.errors import MAX_LINE, OverlayError
from overlay.untrusted import MalformedToml, parse_toml
from tests.support.patches import hunk, patch_text, write_feature

PATCH = patch_text("vllm/a.py", hunk([" a", "+b"], "f"))
TOPIC = "01-x/0.20.0..0.33.0.patch"

KEYS = (
    "id title why releases package upstream reason merged upstreamed builds needs required "
    "switches model_runner situational path scope contains lines share name text default values"
).split()

DIGITS = "9" * 5000

#: Pieces of TOML, hostile ones among them.
PIECES = [
    *KEYS,
    *("=", " = ", "\n", "[", "]", "[[", "]]", "{", "}", ",", ".", '"', "'", '"""', "#", "true"),
    *(DIGITS, f"-{DIGITS}", f"0x{'f' * 5000}", "1e999", "nan", "-inf", f"1e{DIGITS}", "0o7", "1_0"),
    *("1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "9999-99-99", "\\uD800", "\\U0010FFFF"),
    *(
        "\0",
        "\x1b[31m",
        "\ufeff",
        "\r\n",
        "\u2028",
        "x" * 3000,
        "a." * 300,
        "[" * 3000,
        "0.20.0..0.33.0",
    ),
    f'"{DIGITS}..{DIGITS}"',
    f'"0.20.0..{DIGITS}"',
]

documents = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(PIECES), max_size=25).map(lambda parts: "".join(parts).encode()),
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from(PIECES)).map(" = ".join),
        max_size=12,
    ).map(lambda lines: "\n".join(lines).encode()),
)


def folder_with(place: Path, toml: bytes, patch: bytes = PATCH.encode()) -> Path:
    write_feature(place, {TOPIC: PATCH})
    (place / "demo/feature.toml").write_bytes(toml)
    (place / "demo" / TOPIC).write_bytes(patch)
    return place


def read_all(place: Path) -> list[str]:
    """Everything that reads a patches folder, and what it says."""
    loaded = features.load_all([place])
    declarations([place])
    further_packages([place])
    said = [str(error) for malformed in loaded.malformed for error in malformed.errors]
    try:
        features.load([place])
    except OverlayError as error:
        said.append(str(error))
    return said


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents)
@example(b"required = " + DIGITS.encode())
@example(b"required = 0x" + b"f" * 5000)
@example(b"\xff")
@example(b"[" * 100_000)
@example(b'id = "demo"\nreleases = "0.20.0..' + DIGITS.encode() + b'"')
@example(b"\n".join(b"k%d = 1" % number for number in range(300)))
def test_a_feature_toml_raises_nothing_but_errors_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    for text in read_all(folder_with(tmp_path_factory.mktemp("patches"), data)):
        assert max(map(len, text.split("\n"))) <= MAX_LINE + 200


LINES = [
    *PATCH.splitlines(),
    *(
        f"@@ -{DIGITS} +1 @@ f",
        f"@@ -1,{DIGITS} +1 @@ f",
        "@@ -\u0661 +\u0661 @@ f",
        "@@",
        "@@ -0,0 +0,0 @@ <module>",
    ),
    *("--- a/vllm/b.py", "+++ b/vllm/b.py", "--- /dev/null", "diff --git a/x b/x", "-- ", "2.1"),
    *(
        f"Base: {DIGITS}",
        "Base: 0.26.0\n" + " more\n" * 2000,
        "Base-Has: x",
        "Date: " + "(" * 20_000,
    ),
    *(
        "From: " + "(" * 20_000,
        "Subject: " + "=?utf-8?q?a?= " * 200,
        "Date: Mon, 99 Jan 99999",
        "From:",
    ),
    *(
        "Last-Update: 9999-99-99",
        "Ported-From: 0.26.0 merged",
        "\x1b[2J",
        "\\ No newline",
        "\t",
        " ",
    ),
    *("x" * 5000, "From 0123456789 Mon", "---", "", "+", "-", "Content-Transfer-Encoding: base64"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(st.sampled_from(LINES), max_size=20).map(lambda lines: "\n".join(lines).encode()),
    )
)
@example(PATCH.replace("@@ -", f"@@ -{DIGITS}").encode())
@example(PATCH.replace("---", "Base: x\n" + " y\n" * 20_000 + "---", 1).encode())
def test_a_patch_raises_nothing_but_errors_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    place = tmp_path_factory.mktemp("patches")
    write_feature(place, {TOPIC: PATCH})
    (place / "demo" / TOPIC).write_bytes(data)
    for text in read_all(place):
        assert max(map(len, text.split("\n"))) <= MAX_LINE + 200


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a key of 20,000 parts", b"a" + b".a" * 20_000 + b" = 1\n"),
        ("many keys of many parts", (b"a" + b".b" * 250 + b" = 1\n") * 800),
        ("unknown keys", b"".join(b"k%d = 1\n" % number for number in range(5000))),
    ],
)
def test_reading_takes_no_time_that_grows_with_the_square(
    tmp_path: Path, name: str, data: bytes
) -> None:
    began = time.process_time()
    assert read_all(folder_with(tmp_path, data)), name
    assert time.process_time() - began < 5


def test_a_header_of_many_lines_takes_no_time_that_grows_with_the_square(tmp_path: Path) -> None:
    head, _, rest = PATCH.partition("\n")
    began = time.process_time()
    write_feature(tmp_path, {TOPIC: f"{head}\n" + " more of it\n" * 300_000 + rest})
    features.load_all([tmp_path])
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x = 1\ny = [", 2, "at end of document|Invalid value"),
        ("x = 1\ny = ?", 2, "Invalid value"),
        (f"x = {DIGITS}", None, "4300"),
        (f"x = 0x{'f' * 5000}", None, "more than 64 bits"),
        ("[" * 100_000, None, "nested too deeply|Invalid"),
        (b"x = 1\n\xff", 2, "not UTF-8"),
        ("#" * 3_000_000, None, "at most 2097152 characters"),
    ],
)
def test_what_is_not_toml_is_one_error_with_its_line(
    text: str | bytes, line: int | None, words: str
) -> None:
    with pytest.raises(MalformedToml, match=words) as caught:
        parse_toml(text)
    assert line is None or caught.value.line in (line, None)


def test_a_document_is_a_table_without_its_mark() -> None:
    assert parse_toml(b'\xef\xbb\xbfx = 9223372036854775807\n[[y]]\nz = [1979-05-27, "a.b"]') == {
        "x": (1 << 63) - 1,
        "y": [{"z": [date(1979, 5, 27), "a.b"]}],
    }
