"""The key of a cache entry: the pristine files are part of it, and what it misses is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlay._features.sources import shipped_folder
from overlay.in_memory.preparation import Recording, ReferencedPaths, as_it_stands
from overlay.package import VLLM
from overlay.targets.installations import resolve_folder
from overlay.untrusted import sha256
from tests.in_memory.boxes import FEATURE, PATCHED, PRISTINE, PROPOSER, Box
from tests.support.patches import hunk, patch_text

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
#: Loads the plugin where nothing may be planned.
WARM = "import overlay.planning.planner\ndel overlay.planning.planner.plan\n"


def entries(box: Box) -> dict[str, dict[str, object]]:
    """The manifest of each entry in the cache, by its key."""
    folders = (box.cache / "modules").iterdir()
    texts = {folder.name: (folder / "manifest.json").read_text() for folder in folders}
    return {name: json.loads(text.partition("\n")[2]) for name, text in texts.items()}


def test_each_pristine_text_has_an_entry_of_its_own(box: Box) -> None:
    file = box.site / PROPOSER
    first = file.read_text()
    second = first + "\nEDITED = True\n"
    for code, text in ((PATCHED, first), (PATCHED, second)):
        file.write_text(text)
        box.run(code)
    assert len(entries(box)) == 2
    for text in (first, second):  # neither took the other's place
        file.write_text(text)
        log = box.run(WARM + PATCHED)
        assert "has the patches demo (memory)" in log
    file.write_text(first + "\nTHIRD = True\n")
    assert box.attempt(WARM + PATCHED).returncode != 0


def test_an_entry_serves_the_text_that_its_key_was_made_from(box: Box) -> None:
    box.run(PATCHED)
    ((_, manifest),) = entries(box).items()
    modules = manifest["modules"]
    assert isinstance(modules, dict)
    assert modules[PROPOSER]["pristine"] == sha256((box.site / PROPOSER).read_bytes())


def upstreamed(box: Box, path: str = f'path = "{RUNNER}"') -> None:
    """Let demo be upstreamed by a test of a file that it does not patch."""
    test = f'\n[[upstreamed]]\n{path}\nscope = "GPUModelRunner._capture"\ncontains = "has it"\n'
    (box.patches / "demo/feature.toml").write_text(FEATURE + test)


@pytest.mark.parametrize(
    "path", [f'path = "{RUNNER}"', 'path = "vllm\\u002fv1/worker/gpu_model_runner.py"']
)
def test_a_file_that_only_an_upstream_test_looks_at_is_asked_each_time(box: Box, path: str) -> None:
    """In an unusual form, too, in which the key does not see it."""
    upstreamed(box, path)
    file = box.site / RUNNER
    text = file.read_text()
    has = text.replace("return size\n", "return size  # has it\n")
    assert has != text
    for _ in range(2):
        file.write_text(text)
        assert "has the patches demo (memory)" in box.run(PATCHED)
        file.write_text(has)
        assert "demo is upstreamed here" in box.run(PRISTINE)


def test_a_module_that_would_be_added_and_appears_is_seen(box: Box) -> None:
    box.run(PATCHED)
    (box.site / "vllm/v1/spec_decode/added.py").write_text("MARK = 'theirs'\n")
    log = box.run(PRISTINE)
    assert "demo is left out (drifted)" in log


def test_the_paths_are_read_off_every_file_that_names_one(tmp_path: Path) -> None:
    referenced = ReferencedPaths("vllm")
    lines = ["-    return 1", "+    return 2"]
    text = patch_text("vllm/a.py", hunk(lines, "f")) + patch_text("vllm/b/c.py", hunk(lines, "g"))
    referenced.scan("one/10-first/0.25.0..0.26.0.patch", text.encode())
    referenced.scan("one/10-first/0.27.0.patch", b"--- vllm/d.py\n+++ vllm/d.py\t2026-11-21\n@@")
    referenced.scan("one/feature.toml", b"[[upstreamed]]\npath = 'vllm/e.py'\n")
    referenced.scan("one/files/vllm/new/f.py", b"path = 'vllm/none.py'")
    referenced.scan("files/vllm/g.py", b"")  # the folder itself is a feature's
    referenced.scan("one/README.md", b"+++ b/vllm/none.py")
    assert referenced.paths == {f"vllm/{name}.py" for name in ("a", "b/c", "d", "e", "new/f", "g")}


def test_the_shipped_features_name_all_that_a_plan_reads() -> None:
    """So a warm process reads each file once."""
    from overlay._features.folder import load
    from overlay._features.model import of_package
    from overlay._features.sources import fingerprint
    from overlay.package import VLLM

    referenced = ReferencedPaths("vllm")
    fingerprint([str(shipped_folder())], referenced.scan)
    features = of_package(load([shipped_folder()]), VLLM)
    patched = {v.patch.path for feature in features for t in feature.topics for v in t.variants}
    holders = [holder for feature in features for holder in (feature, *feature.topics)]
    tested = {test.path for holder in holders for test in holder.upstream_tests}
    added = {module.path for feature in features for module in feature.added}
    assert referenced.paths == patched | tested | added


def test_what_cannot_be_read_is_left_to_who_plans(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("")
    (box.site / "vllm/linked.py").symlink_to(outside)
    target = resolve_folder(box.site, "box", VLLM)
    referenced = ReferencedPaths("vllm")
    referenced.paths |= {"vllm/linked.py", PROPOSER, "vllm/../x.py", "vllm/none.py"}
    hashes = referenced.hashes(target)
    assert hashes["vllm/none.py"] is None
    assert hashes[PROPOSER] == sha256((box.site / PROPOSER).read_bytes())
    assert str(hashes["vllm/linked.py"]).startswith("cannot be read: ")
    assert str(hashes["vllm/../x.py"]).startswith("cannot be read: ")


def test_what_was_read_is_compared_with_what_stands(box: Box) -> None:
    target = resolve_folder(box.site, "box", VLLM)
    tree = Recording(target)
    tree.read(PROPOSER)
    assert tree.read("vllm/none.py") is None
    recorded = tree.read_so_far
    assert as_it_stands(recorded, {}, target)
    assert as_it_stands(recorded, dict(recorded), target)
    assert not as_it_stands(recorded, {PROPOSER: "0" * 64}, target)
    (box.site / "vllm/none.py").write_text("")
    assert not as_it_stands(recorded, {}, target)
