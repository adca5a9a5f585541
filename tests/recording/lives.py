"""The life of a patch, and what the commands say of themselves, in small releases of vLLM."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.recording.recorder import Recorder
from tests.recording.states import PROPOSER, RANGE, World
from tests.support import fake_vllm, port_world
from tests.support.patches import hunk, patch_text, write_feature

#: The commands that there have to be.
COMMANDS = (
    "check apply revert status adopt diff list doctor report bench verify cache completion help "
    "import new edit log prune port show export"
).split()

RELEASES = (
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 "
    "0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0"
).split()

#: A diff as a pull request has it: one file of vLLM, and one that is none.
CHANGE = f"""\
diff --git a/{PROPOSER} b/{PROPOSER}
--- a/{PROPOSER}
+++ b/{PROPOSER}
@@ -21,2 +21,2 @@ class SpecDecodeBaseProposer:
     def _first(self, tokens):
-        return self.model(tokens)
+        return self.model(list(tokens))
"""
ELSEWHERE = """\
diff --git a/docs/page.md b/docs/page.md
--- a/docs/page.md
+++ b/docs/page.md
@@ -1 +1 @@
-one
+two
"""


def releases() -> Mapping[str, dict[str, bytes]]:
    """The files of the small releases; they differ in the runner of ``port_world``."""
    texts: dict[str, dict[str, bytes]] = {}
    runner = port_world.OLDER
    for release in RELEASES:
        runner = port_world.RELEASES.get(release, runner)
        texts[release] = {**fake_vllm.files(release), port_world.PATH: runner}
    return texts


def record_help(recorder: Recorder) -> None:
    """Record what the commands say of themselves, and how they are misused."""
    for line in ("--help", "--version", "help", "help nothing", "aply", "unapply", ""):
        recorder.command(line, name=f"overlay {line}", files=False)
    for name in COMMANDS:
        recorder.command(f"{name} --help", files=False)
        recorder.command(f"help {name}", files=False)
        recorder.command(f"{name} --no-such-option", files=False)
        recorder.command(f"{name} --no-such-option --json", files=False)
    for shell in ("bash", "zsh", "fish", "sh"):
        recorder.command(f"completion {shell}", files=False)
    for words in ("overlay ", "overlay check --", "overlay apply --feature ", "overlay port --"):
        recorder.command(
            "",
            name=f"completion of {words!r}",
            files=False,
            variables={
                "_OVERLAY_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - (words[-1] != " ")),
            },
        )


def record_catalogue(recorder: Recorder) -> None:
    """Record the commands that need no installation."""
    World(recorder)
    for form in ("", " -v", " --json", " --package vllm-ascend", " --releases", " --package no"):
        recorder.command(f"list{form}", files=False)
        recorder.command(f"list{form} --patches TEAM", files=False)
    for line in (
        *("cache dir", "cache size", "cache dir --json", "cache size --json"),
        *("status --live", "status --live --json", "status --live --require demo"),
        *("doctor VENV --json", "doctor VENV -v", "doctor nowhere", "status nowhere"),
        *("check 0.26.0", "check 0.26.0 -v", "check 0.26.0 --json", "check 9.9.9", "check PART"),
        *("check --releases all", "check --releases all --json", "check --releases 0.32.0..0.33.0"),
        *("check --releases new", "check --releases nonsense", "check 0.26.0 0.27.0 SITE"),
        *("diff 0.26.0", "diff 0.26.0 --json", "diff 0.26.0 --feature window", "apply 0.26.0"),
        *("report SITE --releases 0.32.0..0.33.0", "report SITE --json --no-matrix"),
        *("report SITE -o PART/page.html --no-matrix", "check SITE --feature nothing"),
        *("check SITE --patches nowhere", "check SITE --python VENV", "revert nowhere --json"),
        *("check --python VENV", "status --python VENV/bin/python", "diff --python VENV"),
        *("verify", "verify --json", "verify --tiny", "verify --tiny --draft nothing"),
        *("verify --model nothing", "verify --mode wrong", "verify --python VENV --tiny"),
        *("bench", "bench --json", "bench --shape 1b --only steps", "bench --shape 1b --model a"),
        *("bench --against v2 --budget 0", "bench --python VENV", "bench --port 1 --rounds 0"),
        *("cache clean", "cache clean --json"),
    ):
        recorder.command(line)


def _own(world: World) -> str:
    """Write the feature of ``port_world`` into the team's folder."""
    lines = [
        "         for size in sizes:",
        "-            self.run_graph(size)",
        "+            self.prepare_replay(size)",
        "+            self.replay_graph(size, warm=True)",
    ]
    headers = "Description: Replay\nOrigin: the tests\nLast-Update: 2026-11-20\nBase: 0.21.0\n\n"
    text = patch_text(port_world.PATH, hunk(lines, "Runner.capture"), headers=headers)
    files = {"10-runner/0.21.0..0.21.0.patch": text}
    write_feature(world.team, files, "replay", "0.21.0..0.21.0")
    return " --patches TEAM"


def record_port(recorder: Recorder) -> None:
    """Record ports that land, merge, clash or find that upstream has the change; and sessions."""
    world = World(recorder)
    more = _own(world)
    state = recorder.place.parent / f"{recorder.place.name}.state"
    shutil.copytree(world.team, state)
    for release in ("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.26.0", "9.9.9"):
        recorder.command(f"port replay {release}{more}")
        recorder.command(f"port --abort{more}", name=f"abort after {release}")
    for line in (
        *("port --all 0.22.0", "port --all 0.24.0 --json", "port --abort --json", "port"),
        *("port replay 0.22.0 --write", "port replay 0.23.0 --write", "port --show"),
        *("port --show --json", "port --tool --json", "port nothing 0.22.0", "port --continue"),
        *("port replay 0.24.0 --write", "port replay 0.24.0", "port --skip nothing"),
        *("port --skip replay", "port --retire replay", "port --show --abort"),
    ):
        recorder.command(f"{line}{more}")
    shutil.rmtree(world.team)
    shutil.copytree(state, world.team)
    recorder.command(f"port replay 0.24.0{more}", name="again: a conflict")
    recorder.command(f"port --continue{more}", name="again: continue too early")
    waiting = recorder.work / "port-0.24.0/replay/10-runner" / port_world.PATH
    if waiting.is_file():
        waiting.write_bytes(port_world.PATCHED)
    for line in ("--show", "--continue", "--continue"):
        name = f"again: {line} after an edit, {len(recorder.answers)}"
        recorder.command(f"port {line}{more}", name=name)
    recorder.command(f"port replay 0.25.0 --write --accept merged{more}")
    recorder.command(f"port --all all{more} --json")
    shutil.rmtree(state)


def record_history(recorder: Recorder) -> None:
    """Record what is said of features over releases, and what is proposed."""
    world = World(recorder)
    more = _own(world)
    for line in (
        *("log replay", "log replay -v", "log replay --json", "log --matrix", "log nothing"),
        *("log --matrix --json", "log", "log demo --releases 0.32.0..0.33.0", "log first"),
        *("log replay --upstream nowhere", "prune", "prune --json", "prune --oldest 0.25.0"),
        *("prune --oldest 0.25.0 --write", "prune --oldest 0.25.0 --write --json"),
        *("prune --oldest 9.9.9", "log replay --releases new"),
        *("show replay", "show replay --json", "show nothing", "export replay"),
        *("export replay --release 0.26.0", "export nothing", "export replay --json"),
    ):
        recorder.command(f"{line}{more}")
    recorder.command("prune", name="prune of nothing")


def record_import(recorder: Recorder) -> None:
    """Record imports of diffs."""
    World(recorder)
    (recorder.work / "fix.diff").write_text(CHANGE)
    (recorder.work / "mixed.diff").write_text(CHANGE + ELSEWHERE)
    (recorder.work / "empty.diff").write_text("")
    (recorder.work / "torn.diff").write_text(CHANGE.replace("list(tokens))", "list(tokens))\n-x"))
    (recorder.work / "no-text.diff").write_text(CHANGE.replace("self.model(tokens)", "self.none()"))
    for line in (
        *("fix.diff --id our-fix", "fix.diff --id our-fix", "fix.diff --id our-fix --update -v"),
        *("fix.diff --id json-fix --json", "mixed.diff --id mixed", "mixed.diff --id mixed --json"),
        *("mixed.diff --id mixed --partial", "empty.diff --id empty", "torn.diff --id torn"),
        *("no-text.diff --id no-text", "nowhere.diff --id no", "fix.diff --id Not_An_Id"),
        *("fix.diff --id narrow --releases 0.26.0..0.27.1", "fix.diff --id demo", "fix.diff"),
        *("https://example.invalid/1.diff --id far", "fix.diff --id far --base nowhere"),
    ):
        name = f"import {line}, {len(recorder.answers) + 1}"
        recorder.command(f"import {line} --patches TEAM", name=name)


def record_edit(recorder: Recorder) -> None:
    """Record sessions in which a feature is edited as files."""
    world = World(recorder)
    more = " --patches TEAM"

    def edit(folder: str, old: str, new: str) -> None:
        for file in (recorder.work / folder).rglob("*.py"):
            file.write_text(file.read_text().replace(old, new))

    def then(line: str, name: str) -> None:
        recorder.command(line + more, name=name)

    then("edit first --release 0.26.0", "begin")
    then("edit first --release 0.26.0", "begin again")
    then("edit --commit first@0.26.0", "commit without a change")
    edit("first@0.26.0", "list(tokens)", "tuple(tokens)")
    then("edit --commit first@0.26.0 --json", "commit")
    then("edit --commit first@0.26.0", "commit again")
    then("edit first --json", "begin on the newest release")
    then("edit --abort first@0.33.0", "abort")
    then("edit --abort first@0.33.0", "abort again")
    then("edit nothing", "unknown feature")
    then("edit demo", "shipped feature")
    then("edit", "nothing named")
    then(f"new made --file {port_world.PATH} --release 0.26.0", "new of a file")
    edit("made@0.26.0", "second = first * 2", "second = first * 3")
    then("edit --commit made@0.26.0 -v", "commit what is new")
    then("new made --file vllm/none.py", "new of a file that is none")
    then("new made", "new of nothing")
    world.replace(PROPOSER, "self.model = None", "self.model = None  # ours")
    for form in ("", " --json", " --update", f" --releases {RANGE}"):
        then(f"new own SITE --from-edits{form}", f"new from edits{form}")
    then("apply SITE", "apply beside the edit")
    then("revert SITE", "revert beside the edit")


#: Part -> what records it.
PARTS: dict[str, Callable[[Recorder], None]] = {
    "help": record_help,
    "catalogue": record_catalogue,
    "port": record_port,
    "history": record_history,
    "import": record_import,
    "edit": record_edit,
}


def main() -> None:
    """Write the small releases into the folder that the argument names, as the cache keeps them."""
    from overlay.package import VLLM
    from overlay.targets import Origin, Sources
    from overlay.targets.releases import write

    os.environ["OVERLAY_CACHE"] = str(Path(sys.argv[1]).parent)
    for release, files in releases().items():
        sources = Sources(release, files, frozenset())
        name, index = f"vllm-{release}.tar.gz", "http://127.0.0.1:9/simple"
        origin = Origin(name, index, f"sha256={64 * '0'}", ())
        write(release, sources, origin, VLLM)
