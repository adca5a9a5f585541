"""The main job, on a real engine: patch a vLLM, draft with it, revert it.

``python3 scripts/demo.py`` needs Python 3.11 or 3.12 and pip, and makes everything else below
``.cache/``: an environment with a vLLM that runs on CPU, tiny models whose every token and every
accepted draft is known beforehand, and a copy of vLLM to patch.  It serves with three kinds of
drafts before, patched and reverted, and compares with what is known.  About seven minutes the
first time, three of them for the environment; interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import environment
from scripts.environment import CACHE, ROOT, say
from tests.engine.engine_launch import EngineFailed, launch, write_models
from tests.engine.engine_spec import EngineSpec, make_requests
from tests.engine.private_copy import PrivateCopy, hash_files, make_private_copy, site_packages

FOLDER = CACHE / "demo"
CASES = {
    f"{draft}, K={k}": EngineSpec(str(FOLDER / "models"), draft, k, make_requests(6))
    for draft, k in (("eagle3", 3), ("eagle3hid", 5), ("eagle1", 3))
}
#: A module that a patched vLLM loads and a pristine one has not.
ADDED = "vllm.v1.spec_decode.draft_graphs"
STAGES = ("before", "patched", "reverted")


class Notes:
    """What an interrupted run had done; forgotten where anything that it depends on changed."""

    def __init__(self) -> None:
        self._file = FOLDER / "notes.json"
        self._key = _sources()
        found: dict[str, Any] = {}
        if self._file.is_file():
            found = json.loads(self._file.read_text(encoding="utf-8"))
        self.fresh = found.get("key") != self._key
        self._done: dict[str, Any] = {} if self.fresh else found["done"]

    def get(self, name: str) -> Any:
        """What was noted under ``name``, or ``None``."""
        return self._done.get(name)

    def put(self, name: str, value: Any) -> None:
        """Note a value."""
        self._done[name] = value
        half = self._file.with_suffix(".half")
        half.write_text(json.dumps({"key": self._key, "done": self._done}), encoding="utf-8")
        half.replace(self._file)

    def forget(self) -> None:
        """The run is complete: the next one starts from the beginning."""
        self._file.unlink()


def _sources() -> str:
    """A digest of the overlay, its patches and everything that this script runs."""
    digest = hashlib.sha256()
    for folder in ("overlay", "patches", "scripts", "tests/engine"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".patch", ".toml"):
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def overlay(dev: Path, *arguments: str | Path) -> None:
    """Call the command and show what it says."""
    words = [str(word) for word in arguments]
    say(f"\n$ overlay {' '.join(words)}")
    ended = subprocess.run([str(dev), "-m", "overlay", *words], cwd=ROOT, check=False)
    if ended.returncode != 0:
        raise environment.EnvironmentFailed(
            f"overlay {words[0]} ended with status {ended.returncode}, not 0: see above"
        )


def prepare(notes: Notes) -> tuple[Path, PrivateCopy]:
    """The environments, the models and the copy to patch.

    :returns: the interpreter that has the overlay, and the copy.
    """
    dev, engine = environment.dev_python(), environment.engine_python()
    copy_folder = FOLDER / "vllm"
    if notes.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        say(f"[demo] a copy of vLLM to patch, in {copy_folder}")
        copy = make_private_copy(engine, copy_folder)
        say("[demo] tiny models whose answers are known")
        write_models(engine, FOLDER / "models")
        notes.put("pristine", hash_files(copy.site))
        return dev, copy
    say("[demo] going on where the last run stopped")
    python = copy_folder / "bin" / "python"
    return dev, PrivateCopy(python, site_packages(python))


def serve(notes: Notes, stage: str, copy: PrivateCopy) -> None:
    """Serve every case with what is in the copy now."""
    say(f"\n[{stage}] serving with each kind of draft, 12 to 30 seconds each")
    for case, spec in CASES.items():
        if notes.get(f"{stage} {case}") is None:
            began = time.monotonic()
            result = launch(copy.python, replace(spec))
            del result["log"]
            notes.put(f"{stage} {case}", result)
            verdict = "as it must be" if _right(stage, result) else "NOT as it must be"
            say(f"[{stage}] {case}: {verdict} ({time.monotonic() - began:.0f} s)")
        else:
            say(f"[{stage}] {case}: done before the interruption")


def _right(stage: str, result: dict[str, Any]) -> bool:
    """Tokens and counts agree with what is known, and what ran was patched when it should be."""
    patched = {ADDED in worker["modules"] for worker in result["workers"]}
    known = bool(result["ok"]) and result["counts"] == result["oracle"]
    return known and patched == {stage == "patched"}


def table(notes: Notes) -> list[str]:
    """What each case did in each stage beside what it must do."""
    lines = [f"{'':10} {'draft':14} {'tokens':>9} {'drafts':>7}  accepted at each draft position"]
    for case in CASES:
        oracle = notes.get(f"before {case}")["oracle"]
        for stage in (*STAGES, "known"):
            if stage == "known":
                tokens, counts = "", oracle
            else:
                result = notes.get(f"{stage} {case}")
                right = sum(
                    len(request["tokens"]) for request in result["requests"] if request["tokens_ok"]
                )
                total = sum(len(request["tokens"]) for request in result["requests"])
                tokens, counts = f"{right}/{total}", result["counts"]
            accepted = " ".join(f"{count:4}" for count in counts["per_position"])
            lines.append(f"{stage:10} {case:14} {tokens:>9} {counts['drafts']:>7}  {accepted}")
        lines.append("")
    return lines


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What became of the files of the installation."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            what = (
                "added  " if path not in before else "removed" if path not in after else "changed"
            )
            lines.append(f"  {what}  {path}")
    return lines


def main() -> int:
    """Serve before, patched and reverted; 0 where everything was as it must be."""
    if environment.asked_for_help(__doc__):
        return 0
    if sys.argv[1:]:
        say(f"expected no arguments, found {' '.join(sys.argv[1:])}; --help says what this does")
        return 2
    environment.with_supported_python()
    notes = Notes()
    dev, copy = prepare(notes)
    serve(notes, "before", copy)
    if notes.get("on disk") is None:
        overlay(dev, "check", copy.site)
        overlay(dev, "apply", copy.site)
        notes.put("on disk", changes(notes.get("pristine"), hash_files(copy.site)))
    overlay(dev, "status", copy.site)
    serve(notes, "patched", copy)
    overlay(dev, "revert", copy.site)
    serve(notes, "reverted", copy)
    left = changes(notes.get("pristine"), hash_files(copy.site))

    say("\nTokens that are right, and drafts accepted at each position, beside what is known:\n")
    say("\n".join(table(notes)))
    say("What `overlay apply` did to the installation:\n" + "\n".join(notes.get("on disk")))
    say(
        "What is left of it after `overlay revert`:\n"
        + ("\n".join(left) or "  nothing: every file is byte for byte what it was")
    )
    right = [_right(stage, notes.get(f"{stage} {case}")) for stage in STAGES for case in CASES]
    good = all(right) and not left
    notes.forget()
    say(
        "\nThe patched vLLM drafts exactly as before, and reverted it is what it was."
        if good
        else "\nSomething is not as it must be: see the table and the lists above."
    )
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (environment.EnvironmentFailed, EngineFailed) as error:
        say(str(error))
        sys.exit(2)
