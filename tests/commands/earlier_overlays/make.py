"""Record what earlier overlays leave behind, for ``tests/commands/test_earlier_overlays.py``.

    .cache/dev/bin/python tests/commands/earlier_overlays/make.py [COMMIT...]

Takes the code of each commit out of the repository's history, lets it patch and revert a small fake
vLLM, kills it on the way, and writes ``<commit>.json`` here: every file of every state.  Without
commits it records ``COMMITS`` again.  Only the code is of that time: the features are those below.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSE, RUNNER
from tests.support.patches import hunk, patch_text, write_feature

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

#: What was new at each: the last overlay of one package, with ledgers of schema 1; transactions
#: over several packages, whose journals name each other; the last before the wings; the one from
#: which the code here comes.
COMMITS = ("edfbf494", "f270071c", "0a82ca2c", "d9ad7e34")

#: Those whose killed commands are recorded: the journals of 0a82ca2c are those of f270071c.
KILLED = ("edfbf494", "f270071c", "d9ad7e34")

RANGE = "0.20.0..0.33.0.patch"
#: A feature that every overlay has.
DEMO = {f"10-propose/{RANGE}": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
#: Two that are topics of ``dbo`` from 62caf17f on.
DRAFTS = {f"10-drafts/{RANGE}": CAPTURE, "files/vllm/v1/worker/drafts.py": "DRAFTS = True\n"}
EAGLE3 = {
    f"20-eagle3/{RANGE}": patch_text(
        RUNNER, hunk(["-    return value", "+    return [value]"], "helper")
    )
}
FORMER = {"demo": DEMO, "dbo-drafts": DRAFTS, "dbo-eagle3": EAGLE3}
NOW = {"demo": DEMO, "dbo": {**DRAFTS, **EAGLE3}}
#: One for another package, from b229f83e on.
ASCEND_RANGE = "0.20.2rc1..0.30.0rc2"
ASCEND = {
    f"10-propose/{ASCEND_RANGE}.patch": PROPOSE.replace("/vllm/", "/vllm_ascend/"),
    "files/vllm_ascend/v1/spec_decode/demo.py": "VALUE = 1\n",
}

#: Runs a command of the overlay below the working folder, and ends before the call of that number
#: which renames or removes a file.
_DRIVER = """
import os, runpy, sys
sys.path.insert(0, os.getcwd())
sys.dont_write_bytecode = True
last, sys.argv = int(sys.argv[1]), ["overlay", *sys.argv[2:]]
calls = 0
def counted(call):
    def counting(*arguments, **options):
        global calls
        calls += 1
        if calls == last:
            os._exit(137)
        return call(*arguments, **options)
    return counting
for name in ("rename", "replace", "unlink", "remove"):
    setattr(os, name, counted(getattr(os, name)))
import overlay
assert overlay.__file__.startswith(os.getcwd()), overlay.__file__
runpy.run_module("overlay", run_name="__main__")
"""

#: How many moments of a killed command are kept.
_MOMENTS = 4

Tree = Mapping[str, bytes]


def _has(commit: str, change: str) -> bool:
    """Whether a commit has the change of another."""
    command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", change, commit]
    return subprocess.run(command, check=False).returncode == 0


def write(patches: Path, features: Mapping[str, Mapping[str, str]], *, ascend: bool) -> None:
    """Write features, and the one for another package, into a folder of patches."""
    for name, files in features.items():
        write_feature(patches, files, id=name)
    if ascend:
        toml = 'package = "vllm_ascend"'
        write_feature(patches, ASCEND, id="ascend", releases=ASCEND_RANGE, toml=toml)


class Past:
    """The overlay of a commit, in a folder."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.commit = commit
        self.code = folder / "code"
        self.code.mkdir()
        command = ["git", "-C", str(ROOT), "archive", commit, "overlay", "setup.py"]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", str(self.code)], input=archive, check=True)
        self.now, self.packages = _has(commit, "62caf17f"), _has(commit, "b229f83e")
        write(self.code / "patches", NOW if self.now else FORMER, ascend=self.packages)
        (self.code / "driver.py").write_text(_DRIVER)
        self.cache = folder / "cache"

    def run(self, *words: str, last: int = 0) -> int:
        """Run a command to its end, or to before call ``last``; return its exit status."""
        command = [sys.executable, "-P", "driver.py", str(last), *words]
        environment = {
            **{name: text for name, text in os.environ.items() if "OVERLAY" not in name},
            "OVERLAY_CACHE": str(self.cache),
        }
        return subprocess.run(
            command, cwd=self.code, env=environment, check=False, stdout=subprocess.DEVNULL
        ).returncode


def tree(site: Path) -> Tree:
    """Every file below a folder; an empty folder ends with a slash."""
    entries = {}
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site).as_posix()
        if path.is_file():
            entries[name] = path.read_bytes()
        elif not any(path.iterdir()):
            entries[f"{name}/"] = b""
    return entries


def lay(site: Path, entries: Tree) -> None:
    """Write a tree into a folder that is not there."""
    site.mkdir(parents=True)
    for name, data in entries.items():
        place = site / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.write_bytes(data)
            place.chmod(0o644)


def states(past: Past, folder: Path) -> dict[str, Tree]:
    """What a commit's overlay leaves: of commands that ended, and of some that were killed."""
    site = fake_vllm.site_packages(folder / "pristine")
    if past.packages:
        name, package = "vllm-ascend", "vllm_ascend"
        fake_vllm.site_packages(site, "0.23.0.post1", distribution=name, package=package)
    recorded = {"pristine": tree(site)}

    def after(name: str, start: str, *words: str, last: int = 0) -> bool:
        site = folder / name
        lay(site, recorded[start])
        ended = past.run(*words, str(site), last=last)
        assert ended in (0, 137), f"{name}: {ended}"
        recorded[name] = tree(site)
        return ended == 137

    after("applied", "pristine", "apply")
    after("demo-alone", "pristine", "apply", "--feature", "demo")
    if past.commit not in KILLED:
        return recorded
    for command, start in (("apply", "pristine"), ("revert", "applied")):
        moments, number = [], 1
        while after(name := f"{command}-killed-{number}", start, command, last=number):
            moments.append(name)
            number += 1
        killed = [recorded.pop(each) for each in (*moments, name)][:-1]
        differing = [
            entries
            for place, entries in enumerate(killed)
            if any("journal.json" in path for path in entries) and entries not in killed[:place]
        ]
        step = (len(differing) - 1) / (_MOMENTS - 1)
        for moment in range(_MOMENTS):
            recorded[f"{command}-killed-{moment}"] = differing[round(moment * step)]
    return recorded


def record(commit: str) -> None:
    """Write the file of a commit."""
    texts: dict[str, str] = {}

    def kept(data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()[:12]
        texts[key] = data.decode()
        return key

    with tempfile.TemporaryDirectory() as name:
        past = Past(commit, Path(name))
        each = {
            state: {path: kept(data) for path, data in entries.items()}
            for state, entries in states(past, Path(name)).items()
        }
    said = ["git", "-C", str(ROOT), "show", "-s", "--format=%h %cs %s", commit]
    title = subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
    document = {"commit": title, "former_ids": not past.now, "states": each, "texts": texts}
    (HERE / f"{commit}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(commit, len(each), "states", len(texts), "texts")


if __name__ == "__main__":
    for commit in sys.argv[1:] or COMMITS:
        record(commit)
