"""RECORD: every row under ``vllm/`` that has a sha256, and whether a distribution owns vLLM."""

from __future__ import annotations

import csv
import hashlib
import io

from hypothesis import example, given
from hypothesis import strategies as st

from overlay.package import VLLM
from overlay.targets import installations
from overlay.targets.installations import Record, may_list_packages, owns, packages_in
from tests.support import fake_vllm

_NAMES = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0\r\n"), min_size=1
)
_PATHS = st.builds("{}/{}".format, st.sampled_from(["vllm", "vllm/v1", "torch", "vllmx"]), _NAMES)


@given(st.dictionaries(_PATHS, st.binary(max_size=20)))
def test_reads_back_every_row_under_vllm(contents: dict[str, bytes]) -> None:
    rows = Record(fake_vllm.record(contents, "vllm-1.0.dist-info/RECORD"), VLLM)

    assert dict(rows) == {
        path: hashlib.sha256(content).hexdigest()
        for path, content in contents.items()
        if path.startswith("vllm/")
    }


def test_rows_without_a_usable_sha256_are_left_out() -> None:
    rows = (
        b"vllm/a.py,,\r\n"
        b"vllm/b.py,md5=AAAA,3\r\n"
        b"vllm/c.py,sha256=short,3\r\n"
        b"vllm/d.py\r\n"
        b"vllm/f.py,sha256=c2hvcnQ,3\r\n"
        b"vllm/e.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\r\n"
    )

    assert dict(Record(rows, VLLM)) == {"vllm/e.py": hashlib.sha256(b"").hexdigest()}


def test_ownership_is_the_package_itself_not_a_file_beside_it() -> None:
    assert owns(b"vllm/__init__.py,sha256=x,1\n", VLLM)
    assert owns(b"a.py,,\r\nvllm/__init__.py,,\r\n", VLLM)
    assert not owns(
        b"acme/vllm/__init__.py,,\nvllm/plugin.py,,\nvllm_overlay/__init__.py,,\n", VLLM
    )


@given(
    st.binary(max_size=200)
    | st.text(alphabet=',"\r\n\0vlm/a.py=sh256-', max_size=80).map(str.encode)
)
@example(b"\n\n.vllm-overlay/ledger.json,,\n")
@example(b".vllm-overlay/ledger.json,sha256=A,\xb2\n")
@example(b'vllm/a.py,"' + b"x" * 200_000)
@example(b"vllm/a.py,sha256=\xe9,9" + b"9" * 5000)
def test_any_bytes_are_a_record(raw: bytes) -> None:
    """What is not a row is left out; none of these may raise."""
    assert all(len(digest) == 64 for digest in dict(Record(raw, VLLM)).values())
    installations.our_rows(raw, VLLM)
    installations.without_rows(raw, None, ["vllm/a.py"], VLLM)
    ours = installations.Row("vllm/b.py", "0" * 64, 3)
    assert installations.our_rows(installations.with_rows(raw, [ours], VLLM), VLLM)[-1] == ours


#: Rows of packages, of modules, and of names that only look like a package's row.
_LISTED = [
    *("vllm/__init__.py", "b/__init__.py", "vllm/c/__init__.py", 'q"/__init__.py', "n\n/x.py"),
    *("n\n/__init__.py", "m\r/__init__.py", "c,/__init__.py", "__init__.py"),
]


@given(
    st.lists(st.sampled_from(_LISTED)),
    st.sampled_from([",sha256=x,1", ",,", ""]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_packages_are_never_counted_too_low(paths: list[str], rest: str, end: str) -> None:
    out = io.StringIO()
    for path in paths:
        csv.writer(out, lineterminator="").writerow([path])
        out.write(f"{rest}{end}")
    record = out.getvalue().encode()
    assert may_list_packages(record) >= len(packages_in(record))
    assert may_list_packages(b"vllm/__init__.py,,\r\nvllm/a/__init__.py,,\r\nvllm/b.py,,\r\n") == 1
