"""A vLLM installation that engines patch in memory and that must not change meanwhile."""

from __future__ import annotations

import argparse
import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from overlay.proof.engine_pool import link_packages

TESTS = Path(__file__).resolve().parents[1]
#: How a process knows that it runs where the installation is mounted read-only.
_MOUNTED = "TEST_INSTALLATION_IS_MOUNTED"


def parser(about: str | None) -> argparse.ArgumentParser:
    """The command line that the scripts for a vLLM patched in memory have in common.

    :param about: the docstring of the script; its first line describes the command.
    """
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    made.add_argument("--site", type=Path, required=True, help="folder with a pristine vllm")
    made.add_argument("--overlay", type=Path, required=True, help="what overlay_site.py made")
    made.add_argument("--out", type=Path, required=True)
    return made


def fingerprint(site: Path) -> dict[str, str]:
    """Content and time of change of everything below ``site/vllm``, bytecode included."""
    found = {}
    for path in sorted((site / "vllm").rglob("*")):
        status = path.lstat()
        text = f"{status.st_mode:o} {status.st_mtime_ns}"
        if path.is_file():
            with path.open("rb") as stream:
                text += f" {hashlib.sha256(stream.read()).hexdigest()}"
        found[str(path.relative_to(site))] = text
    return found


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The paths whose content, mode or time differ, or that only one of both has."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def mount_read_only(site: Path) -> None:
    """Start this script again where ``site`` is mounted read-only, if that is possible here.

    A user who may write everything (root) is stopped by nothing less.
    """
    unshare = shutil.which("unshare")
    if os.environ.get(_MOUNTED) or unshare is None:
        return
    inside = [unshare, "--mount", "sh", "-c"]
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    tried = subprocess.run(
        [*inside, mount, str(site), "true"], capture_output=True, timeout=20, check=False
    )
    if tried.returncode == 0:
        os.environ[_MOUNTED] = "1"
        os.execv(unshare, [*inside, mount, str(site), sys.executable, *sys.argv])


def why_not_written(site: Path) -> str:
    """``read-only``, ``no permission``, or ``by hash only`` where a file could be made."""
    trial = site / "vllm/.trial"
    try:
        trial.touch()
    except OSError as error:
        return "read-only" if error.errno == errno.EROFS else "no permission"
    trial.unlink()
    return "by hash only"


def environment(site: Path, overlay: Path, work: Path, **more: str) -> dict[str, str]:
    """Variables of an engine that finds the overlay beside a pristine vLLM.

    :param overlay: what ``overlay_site.py`` made.
    :param work: a folder for caches and records.
    """
    for name in ("cache", "run", "vllm"):
        (work / name).mkdir(mode=0o700, exist_ok=True)
    code = link_packages(work / "code", (TESTS,))
    path = [str(place.resolve()) for place in (overlay, site, code)]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OVERLAY_CACHE": str(work / "cache"),
        "XDG_RUNTIME_DIR": str(work / "run"),
        "VLLM_CACHE_ROOT": str(work / "vllm"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        **more,
    }
