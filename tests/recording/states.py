"""The states of an installation in which every command is recorded, and what brings each about.

The installation is a small vLLM in a virtual environment; the shipped features of the copied
overlay are ``demo`` (a patch, a module and a switch) and ``window``; a team's folder has ``first``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.recording.recorder import Recorder
from tests.support import fake_vllm
from tests.support.patches import hunk, patch_text, write_feature

PROPOSER = "vllm/v1/spec_decode/proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ADDED = "vllm/v1/spec_decode/demo.py"
SECOND = "vllm/v1/spec_decode/second.py"
FORMER = ("dbo-drafts", "dbo-lengths")
LEDGER = ".vllm-overlay/ledger.json"
RANGE = "0.20.0..0.33.0"
ASCEND = "vllm_ascend"

_SWITCH = """
[[switches]]
name = "OVERLAY_DEMO"
values = ["on", "off"]
default = "on"
text = "Whether drafts are demonstrated."
"""


def _patch(path: str, scope: str, *lines: str) -> str:
    return patch_text(path, hunk(lines, scope))


PROPOSE = _patch(
    PROPOSER,
    "SpecDecodeBaseProposer.propose",
    "     def propose(self, tokens):",
    "-        drafts = [self._first(tokens)]",
    "+        drafts = [self._first(tokens)]  # patched",
)
WINDOW = _patch(
    RUNNER,
    "GPUModelRunner.capture_model",
    "         captured = 0",
    "-        for size in (1, 2, 4):",
    "+        for size in (1, 2, 4, 8):",
)
FIRST = _patch(
    PROPOSER,
    "SpecDecodeBaseProposer._first",
    "-        return self.model(tokens)",
    "+        return self.model(list(tokens))",
)
CLASH = PROPOSE.replace("# patched", "# the team's")


def write_shipped(folder: Path) -> None:
    """Write the features that come with the copied overlay."""
    files = {f"10-propose/{RANGE}.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
    write_feature(folder, files, toml=_SWITCH)
    write_feature(folder, {f"10-window/{RANGE}.patch": WINDOW}, id="window")


def write_team(folder: Path) -> None:
    """Write the features of a team."""
    write_feature(folder, {f"10-first/{RANGE}.patch": FIRST}, id="first")


class World:
    """An installation and a team's patches in the folder of a part."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.environment = recorder.place / "venv"
        self.site = self.environment / "lib/python3.12/site-packages"
        self.team = recorder.place / "team"
        recorder.words |= {self.site: "SITE", self.environment: "VENV", self.team: "TEAM"}
        write_team(self.team)
        self.install("0.26.0")

    def install(self, version: str, extra: fake_vllm.Files | None = None) -> None:
        """Install a vLLM, whatever there was."""
        shutil.rmtree(self.environment, ignore_errors=True)
        fake_vllm.site_packages(self.site, version, extra)
        (self.environment / "bin").mkdir()
        (self.environment / "bin/python").write_text("#!/bin/sh\n")
        (self.environment / "bin/python").chmod(0o755)
        (self.environment / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.1\n")

    def upgrade(self, version: str) -> None:
        """Install another version over what is there, as pip does."""
        for information in self.site.glob("*.dist-info"):
            shutil.rmtree(information)
        fake_vllm.site_packages(self.site, version)

    def do(self, line: str, *, status: int = 0) -> None:
        """Run a command that brings a state about."""
        code, out, err = self.recorder.run(line)
        if code != status:
            raise RuntimeError(f"overlay {line}: exit {code}, not {status}\n{out}{err}")

    def replace(self, path: str, old: str, new: str) -> None:
        """Edit a file of the installation."""
        file = self.site / path
        text = file.read_text()
        if old not in text:
            raise RuntimeError(f"{path} has no {old!r}")
        file.write_text(text.replace(old, new))

    def ledger(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the ledger."""
        file = self.site / LEDGER
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document, indent=1) + "\n")


def _applied(world: World) -> None:
    world.do("apply SITE")


def _partial(world: World) -> None:
    _applied(world)
    (world.site / ADDED).unlink()


def _drifted(world: World) -> None:
    world.replace(PROPOSER, "drafts = [self._first(tokens)]", "drafts = list(self._first(tokens))")


def _edited(world: World) -> None:
    _applied(world)
    world.replace(PROPOSER, "# patched", "# patched, and edited")


def _upstreamed(world: World) -> None:
    files = {ADDED: b"VALUE = 1\n"}
    world.install("0.26.0", {**files, PROPOSER: _patched(PROPOSER), RUNNER: _patched(RUNNER)})


def _patched(path: str) -> bytes:
    text = fake_vllm.files()[path].decode()
    text = text.replace(
        "drafts = [self._first(tokens)]", "drafts = [self._first(tokens)]  # patched"
    )
    return text.replace("(1, 2, 4)", "(1, 2, 4, 8)").encode()


def _foreign(world: World) -> None:
    for path in (PROPOSER, RUNNER):
        (world.site / path).write_bytes(_patched(path))
    (world.site / ADDED).write_text("VALUE = 1\n")


def _half_foreign(world: World) -> None:
    (world.site / RUNNER).write_bytes(_patched(RUNNER))


def _interrupted(world: World) -> None:
    def work() -> None:
        replace = os.replace

        def killed(source: str | Path, destination: str | Path, **folders: int) -> None:
            if folders and str(destination).endswith(".py"):
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, destination, **folders)

        os.replace = killed  # type: ignore[assignment]
        world.recorder.main("apply SITE")

    code, out, err = world.recorder.fork(work)
    if code != -signal.SIGKILL or not (world.site / ".vllm-overlay/journal.json").exists():
        raise RuntimeError(f"the apply was not interrupted: {code}\n{out}{err}")


def _older_ledger(world: World) -> None:
    _applied(world)
    world.ledger(_as_schema_1)


def _as_schema_1(ledger: dict[str, Any]) -> None:
    """Write a reason as two texts with a mark between, as the first ledgers did."""
    ledger["schema"] = 1
    for feature in ledger["features"]:
        parts = [feature, *feature["files"], *(h for f in feature["files"] for h in f["hunks"])]
        for part in parts:
            part["why"] = part.pop("reason")


def _newer_ledger(world: World) -> None:
    _applied(world)
    world.ledger(lambda ledger: ledger.update(schema=99, overlay="9.0"))


def _damaged_ledger(world: World) -> None:
    _applied(world)
    (world.site / LEDGER).write_text("{")


def _lost_ledger(world: World) -> None:
    _applied(world)
    shutil.rmtree(world.site / ".vllm-overlay")


def _lost_copies(world: World) -> None:
    _applied(world)
    shutil.rmtree(world.site / ".vllm-overlay/pristine")


def _reinstalled(world: World) -> None:
    _applied(world)
    world.upgrade("0.27.0")


def _older_patches(world: World) -> None:
    older = world.recorder.place / "older"
    write_feature(older, {f"10-first/{RANGE}.patch": FIRST.replace("list(", "tuple(")}, id="first")
    shutil.move(world.team, world.recorder.place / "newer")
    shutil.copytree(older, world.team)
    world.do("apply SITE --patches TEAM")
    shutil.rmtree(world.team)
    shutil.move(world.recorder.place / "newer", world.team)


def _former_ids(world: World) -> None:
    """What is a feature now was applied as two: nobody else has ids that became another's."""
    files = {f"10-first/{RANGE}.patch": FIRST, f"files/{SECOND}": "VALUE = 2\n"}
    write_feature(world.team, files, id="dbo")
    shutil.rmtree(world.team / "first")
    world.do("apply SITE --patches TEAM")
    world.ledger(_split)


def _split(ledger: dict[str, Any]) -> None:
    """Write each file of a feature as that of a former one."""
    parts = []
    for feature in ledger["features"]:
        if feature["feature"] != "dbo":
            parts.append(feature)
            continue
        for name, file in zip(FORMER, feature["files"], strict=True):
            parts.append({**feature, "feature": name, "files": [file], "digest": 64 * name[4]})
    ledger["features"] = parts


def _untested(world: World) -> None:
    world.install("0.99.0")


def _too_old(world: World) -> None:
    world.install("0.15.0")


def _ambiguous(world: World) -> None:
    world.replace(
        RUNNER,
        "        captured = 0\n        for size in (1, 2, 4):\n",
        "        captured = 0\n        for size in (1, 2, 4):\n            pass\n"
        "        captured = 0\n        for size in (1, 2, 4):\n",
    )


def _missing(world: World) -> None:
    world.replace(PROPOSER, "def propose(", "def propose_all(")
    (world.site / RUNNER).unlink()


def _runner_v2(world: World) -> None:
    features = world.recorder.place / "team"
    toml = 'model_runner = "v1"'
    write_feature(features, {f"10-first/{RANGE}.patch": FIRST}, id="first", toml=toml)
    world.install("0.33.0")


def _clash(world: World) -> None:
    write_feature(world.team, {f"10-propose/{RANGE}.patch": CLASH}, id="rival")


def _two_packages(world: World) -> None:
    path = PROPOSER.replace("vllm/", f"{ASCEND}/")
    releases = "0.20.2rc1..0.30.0rc2"
    text = PROPOSE.replace(" a/vllm/", f" a/{ASCEND}/").replace(" b/vllm/", f" b/{ASCEND}/")
    write_feature(
        world.team,
        {f"10-lengths/{releases}.patch": text},
        id="lengths",
        releases=releases,
        toml=f'package = "{ASCEND}"',
    )
    fake_vllm.site_packages(world.site, "0.23.0.post1", distribution="vllm-ascend", package=ASCEND)
    if not (world.site / path).is_file():
        raise RuntimeError(f"{path} is not installed")


def _two_applied(world: World) -> None:
    _two_packages(world)
    world.do("apply SITE --patches TEAM")


def _nothing(world: World) -> None:
    shutil.rmtree(world.site)
    world.site.mkdir()


#: Name of a state -> what brings a pristine installation into it.
STATES: dict[str, Callable[[World], object]] = {
    "pristine": lambda world: None,
    "applied": _applied,
    "partial": _partial,
    "drifted": _drifted,
    "edited": _edited,
    "upstreamed": _upstreamed,
    "foreign": _foreign,
    "half-foreign": _half_foreign,
    "interrupted": _interrupted,
    "older-ledger": _older_ledger,
    "newer-ledger": _newer_ledger,
    "damaged-ledger": _damaged_ledger,
    "lost-ledger": _lost_ledger,
    "lost-copies": _lost_copies,
    "reinstalled": _reinstalled,
    "older-patches": _older_patches,
    "former-ids": _former_ids,
    "untested": _untested,
    "too-old": _too_old,
    "ambiguous": _ambiguous,
    "missing": _missing,
    "runner-v2": _runner_v2,
    "clash": _clash,
    "two-packages": _two_packages,
    "two-applied": _two_applied,
    "nothing": _nothing,
}
#: States that are seen with the team's patches.
WITH_TEAM = frozenset(
    {"older-patches", "former-ids", "runner-v2", "clash", "two-packages", "two-applied"}
)

#: Commands that are recorded in every state, each from that state itself.
READING = (
    "check SITE",
    "check SITE -v",
    "check SITE --json",
    "check SITE --feature demo",
    "check SITE --without demo",
    "status SITE",
    "status SITE -v",
    "status SITE --json",
    "status SITE --require demo",
    "diff SITE",
    "apply SITE --dry-run",
    "report SITE --no-matrix",
    "doctor VENV",
)
WRITING = (
    "apply SITE",
    "apply SITE --json",
    "apply SITE --feature demo",
    "apply SITE --require all",
    "apply SITE --untested",
    "adopt SITE",
    "adopt SITE --json",
    "revert SITE",
    "revert SITE --json",
    "revert SITE --feature demo",
    "revert SITE --keep-as kept --patches TEAM",
    "new kept SITE --from-edits --patches TEAM",
)
#: Further ones in one state.
FURTHER = {
    "former-ids": (
        "check SITE --feature dbo-lengths",
        "check SITE --feature dbo-drafts --feature dbo-lengths --json",
        "check SITE --without dbo-lengths",
        "status SITE --require dbo-lengths",
        "apply SITE --feature dbo-lengths",
        "apply SITE --require dbo-drafts",
        "revert SITE --feature dbo-lengths",
    )
}
#: Commands without a TARGET: the vLLM that this Python would import.
IMPORTED = ("status", "check", "apply")


def record(recorder: Recorder, state: str) -> None:
    """Record every command in one state."""
    world = World(recorder)
    STATES[state](world)
    kept = recorder.place.parent / f"{recorder.place.name}.state"
    shutil.copytree(recorder.place, kept, symlinks=True)

    def begin() -> None:
        for name in ("venv", "team", "work"):
            shutil.rmtree(recorder.place / name, ignore_errors=True)
            shutil.copytree(kept / name, recorder.place / name, symlinks=True)
        recorder.forget()

    more = " --patches TEAM" if state in WITH_TEAM else ""
    for line in READING:
        begin()
        recorder.command(line + more)
    for line in (*WRITING, *FURTHER.get(state, ())):
        begin()
        recorder.command(line if "TEAM" in line else line + more)
    for line in IMPORTED:
        begin()
        recorder.command(line + more, path=[world.site])
    begin()
    recorder.command("apply SITE" + more, name="first: apply", files=False)
    recorder.command("apply SITE" + more, name="then: apply again")
    recorder.command("revert SITE" + more, name="then: revert")
    recorder.command("revert SITE" + more, name="then: revert again")
    begin()
    shutil.rmtree(kept)
