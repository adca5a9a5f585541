"""The table of bad processes: limits, outputs and environments that only a process of its own has.

Group E of the review (processes and disks) and those of group C (the environment) that cannot be
made inside the tests' own process.  Each row: how the command is started, how it ends, and a word
that it has to say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import ADDED, PROPOSE, digest
from tests.support.patches import write_feature

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FULL = Path("/dev/full")


@dataclass
class Place:
    """Where a row is tried: a pristine site and one that is patched, and a scratch folder."""

    tmp: Path
    site: Path
    applied: Path


@dataclass(frozen=True)
class Row:
    """One bad process.

    :ivar arguments: of the command; :ivar exit: how it ends; :ivar word: what it has to say.
    :ivar shell: a shell's command line in which ``"$@"`` is the command.
    :ivar make: prepares the folder, and gives variables of the environment.
    """

    name: str
    arguments: Callable[[Place], Sequence[str | Path]]
    exit: int
    word: str
    shell: str = '"$@"'
    make: Callable[[Place], Mapping[str, str]] = field(default=lambda place: {})


def _module(name: str, text: str) -> Callable[[Place], Mapping[str, str]]:
    """A folder on PYTHONPATH in which a module has a name that matters."""

    def make(place: Place) -> Mapping[str, str]:
        path = place.tmp / "path" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return {"PYTHONPATH": f"{place.tmp / 'path'}{os.pathsep}{ROOT}"}

    return make


def _beside(place: Place) -> Mapping[str, str]:
    """A module that the overlay imports, in the working folder of the installed command."""
    place.tmp.joinpath("path").mkdir()
    place.tmp.joinpath("path/click.py").write_text(STOP)
    place.tmp.joinpath("bin").mkdir()
    place.tmp.joinpath("bin/overlay").write_text("import overlay.__main__ as m; m.main()")
    return {}


#: Runs the command as the script that an installer makes, and not as ``python -m``, which puts the
#: working folder on the path.
AS_INSTALLED = 'python=$1; shift 4; cd "$TMP/path"; "$python" "$TMP/bin/overlay" "$@"'


def _zipped(place: Place) -> Mapping[str, str]:
    """A vLLM in a zip file on PYTHONPATH, which Python itself could import."""
    place.tmp.joinpath("path").mkdir()
    with zipfile.ZipFile(place.tmp / "path/v.zip", "w") as archive:
        archive.writestr("vllm/__init__.py", STOP)
    return {"PYTHONPATH": f"{place.tmp / 'path/v.zip'}{os.pathsep}{ROOT}"}


#: Code of a target, which no command may ever run.
STOP = "raise SystemExit('the code of the target ran')\n"


def check(place: Place) -> Sequence[str | Path]:
    return ["check", place.site]


def status(place: Place) -> Sequence[str | Path]:
    return ["status", place.applied]


def apply(place: Place) -> Sequence[str | Path]:
    return ["apply", place.site]


def revert(place: Place) -> Sequence[str | Path]:
    return ["revert", place.applied]


def here(place: Place) -> Sequence[str | Path]:
    return ["check"]


#: Standard output is a pipe that nobody reads any more.
GONE = 'exec 4> >(:); wait $!; "$@" >&4'

WITHOUT_FOLDER = 'mkdir "$TMP/gone"; cd "$TMP/gone"; rmdir "$TMP/gone";'

# fmt: off
ROWS = [
    # Standard output that cannot be written
    Row("E check to a full device", check, 2, "No space left", '"$@" >/dev/full'),
    Row("E status as JSON to a full device", lambda p: ["status", "--json", p.applied], 2,
        "No space left", '"$@" >/dev/full'),
    Row("E list to a full device", lambda p: ["list"], 2, "No space left", '"$@" >/dev/full'),
    Row("E help to a full device", lambda p: ["--help"], 2, "No space left", '"$@" >/dev/full'),
    Row("E diff to a full device", lambda p: ["diff", p.site], 2, "No space left",
        '"$@" >/dev/full'),
    Row("E errors to a full device", lambda p: ["check", "no-such"], 2, "", '"$@" 2>/dev/full'),
    Row("E closed standard output", check, 0, "", '"$@" >&-'),
    Row("E closed standard error", check, 0, "can be applied", '"$@" 2>&-'),
    Row("E closed standard input", check, 0, "can be applied", '"$@" <&-'),
    Row("E help to a reader that is gone", lambda p: ["--help"], 0, "", GONE),
    Row("E list to a reader that is gone", lambda p: ["list"], 0, "", GONE),
    Row("E notes to a reader that is gone", lambda p: ["list"], 0, "", f"{GONE} 2>&4",
        lambda p: {"PYTHONWARNINGS": "always", "OVERLAY_NOSUCH": "1"}),
    # Limits
    Row("E file size, check", check, 0, "can be applied", 'ulimit -f 0; "$@"'),
    Row("E file size, apply", apply, 2, "as it was before the apply", 'ulimit -f 0; "$@"'),
    Row("E file size of a block, apply", apply, 2, "File too large", 'ulimit -f 1; "$@"'),
    Row("E file size, revert", revert, 2, "as it was before the revert", 'ulimit -f 0; "$@"'),
    Row("E open files, check", check, 0, "can be applied", 'ulimit -n 12; "$@"'),
    Row("E open files, apply", apply, 0, "Applied demo", 'ulimit -n 12; "$@"'),
    Row("E memory, check", check, 0, "can be applied", 'ulimit -v 400000; "$@"'),
    Row("E core and stack, check", check, 0, "can be applied", 'ulimit -c 0 -s 1024; "$@"'),
    # The environment
    Row("C a vllm.py first on PYTHONPATH", here, 2, "vllm", make=_module("vllm.py", STOP)),
    Row("C a namespace vllm on PYTHONPATH", here, 2, "vllm",
        make=_module("vllm/data.txt", "nothing\n")),
    Row("C a vllm whose code stops, on PYTHONPATH", here, 1, "",
        make=_module("vllm/__init__.py", STOP)),
    Row("C a vllm in a zip file on PYTHONPATH", here, 2, "archive", make=_zipped),
    Row("C a click.py in the working folder", check, 0, "can be applied",
        AS_INSTALLED, _beside),
    Row("C a working folder that is gone", check, 0, "can be applied",
        f'{WITHOUT_FOLDER} "$@"'),
    Row("C pip in a working folder that is gone", lambda p: ["list", "--releases"], 2,
        "the releases are known", f'{WITHOUT_FOLDER} PIP_NO_INDEX=1 "$@"'),
    Row("C a target below a working folder that is gone", lambda p: ["check", "./x"], 2,
        "the working folder is gone", f'{WITHOUT_FOLDER} "$@"'),
    Row("C warnings are errors", check, 0, "can be applied", 'PYTHONWARNINGS=error "$@"'),
    Row("C asserts are left out", check, 0, "can be applied", 'PYTHONOPTIMIZE=2 "$@"'),
    Row("C an output encoding of ASCII", check, 0, "can be applied",
        'PYTHONIOENCODING=ascii LC_ALL=C "$@"'),
    Row("C no environment at all", check, 0, "can be applied",
        'env -i PYTHONPATH="$PYTHONPATH" OVERLAY_PATCHES="$OVERLAY_PATCHES" "$@"'),
    Row("C a HOME that cannot be written", check, 0, "can be applied",
        'unset OVERLAY_CACHE XDG_CACHE_HOME; HOME=/proc/self "$@"'),
    Row("C a cache in /proc", check, 0, "can be applied", 'OVERLAY_CACHE=/proc/self/x "$@"'),
    Row("C a relative cache", check, 0, "can be applied", 'cd "$TMP"; OVERLAY_CACHE=c "$@"'),
]
# fmt: on


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patches")
    write_feature(
        folder, {"10-propose/0.20.0..0.33.0.patch": PROPOSE, f"files/{ADDED}": "VALUE = 1\n"}
    )
    return folder


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, patches: Path) -> Path:
    """A pristine site and a patched one, to be copied."""
    folder = tmp_path_factory.mktemp("sites")
    for name in ("site", "applied"):
        fake_vllm.site_packages(folder / name)
    done = _start(["apply", folder / "applied", "--feature", "demo"], folder, patches, {})
    assert done.returncode == 0, done.stderr
    return folder


def _start(
    arguments: Sequence[str | Path],
    folder: Path,
    patches: Path,
    variables: Mapping[str, str],
    shell: str = '"$@"',
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "overlay", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    return subprocess.run(
        ["bash", "-c", shell, "bash", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={
            **kept,
            "PYTHONPATH": str(ROOT),
            "OVERLAY_PATCHES": str(patches),
            "OVERLAY_CACHE": str(folder / "cache"),
            "TMP": str(folder),
            **variables,
        },
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_it_ends_as_the_table_says(row: Row, tmp_path: Path, sites: Path, patches: Path) -> None:
    if "/dev/full" in row.shell and not FULL.exists():
        pytest.skip("this machine has no /dev/full")
    for name in ("site", "applied"):
        shutil.copytree(sites / name, tmp_path / name)
    place = Place(tmp_path, tmp_path / "site", tmp_path / "applied")
    variables = row.make(place)
    before = {name: digest(tmp_path / name) for name in ("site", "applied")}
    arguments = row.arguments(place)
    if arguments[0] not in ("list", "revert", "status", "--help"):
        arguments = [*arguments, "--feature", "demo"]
    done = _start(arguments, tmp_path, patches, variables, row.shell)
    said = done.stdout + done.stderr
    assert (done.returncode, row.word in said) == (row.exit, True), said
    assert "Traceback" not in said
    assert "bug in vllm-overlay" not in said
    assert "the code of the target ran" not in said
    assert "Exception ignored" not in said
    if row.exit == 2:
        assert {name: digest(tmp_path / name) for name in ("site", "applied")} == before, said
