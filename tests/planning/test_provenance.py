"""Whether a file is the release's own."""

from __future__ import annotations

import hashlib

from overlay.planning.provenance import Provenance, other_patcher
from tests.support.patches import MemoryTree

OWN, EDITED = b"x = 1\n", b"# [Genesis wiring marker: Genesis P12]\nx = 1\n"
RECORD = {"vllm/a.py": hashlib.sha256(OWN).hexdigest()}


def test_the_release_s_own_file_is_not_foreign() -> None:
    provenance = Provenance(MemoryTree({"vllm/a.py": OWN}), RECORD)
    provenance.use("vllm/a.py")
    assert provenance.foreign("vllm/a.py") is None
    assert provenance.notices() == ()


def test_an_edited_file_is_named_with_the_other_patcher() -> None:
    provenance = Provenance(MemoryTree({"vllm/a.py": EDITED, "vllm/b.py": b"y\n"}), RECORD)
    provenance.use("vllm/b.py")
    provenance.use("vllm/a.py")
    first, second = provenance.notices()
    assert (first.path, second.path) == ("vllm/a.py", "vllm/b.py")
    assert first.text.startswith("it is not the release's own file: expected the sha256 ")
    expected, present = RECORD["vllm/a.py"][:12], hashlib.sha256(EDITED).hexdigest()[:12]
    assert f" {expected}... of the RECORD, found {present}..., with a mark" in first.text
    assert "with a mark of Genesis at line 1" in first.text
    assert "the RECORD does not list it" in second.text


def test_an_edit_without_a_mark_names_no_patcher() -> None:
    provenance = Provenance(MemoryTree({"vllm/a.py": b"x = 2\n"}), RECORD)
    present = hashlib.sha256(b"x = 2\n").hexdigest()[:12]
    assert (provenance.foreign("vllm/a.py") or "").endswith(f"found {present}...")


def test_a_file_is_original_where_the_record_has_its_bytes() -> None:
    tree = MemoryTree({"vllm/a.py": OWN, "vllm/b.py": b"y\n"})
    assert Provenance(tree, RECORD).original("vllm/a.py") is True
    assert Provenance(tree, RECORD).original("vllm/b.py") is False
    assert Provenance(tree, None).original("vllm/a.py") is None


def test_only_files_that_matter_are_warned_of() -> None:
    provenance = Provenance(MemoryTree({"vllm/a.py": EDITED}), RECORD)
    assert provenance.foreign("vllm/a.py") is not None
    assert provenance.notices() == ()


def test_without_a_record_nothing_is_said() -> None:
    provenance = Provenance(MemoryTree({"vllm/a.py": EDITED}), None)
    provenance.use("vllm/a.py")
    assert provenance.notices() == ()


def test_a_file_that_is_not_there_is_not_foreign() -> None:
    assert Provenance(MemoryTree({}), RECORD).foreign("vllm/a.py") is None


def test_the_word_alone_is_no_mark() -> None:
    assert other_patcher(b"# Genesis of this module\nGENESIS = 1\n") is None
    assert other_patcher(b"x\n\n    # [Genesis PN3]\n") == "a mark of Genesis at line 3"
