"""The overlay as pip installs it, in a folder beside a vLLM that is never written to."""

from __future__ import annotations

import importlib.util
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
#: What the plugin imports and a vLLM need not have.
NEEDED = ("platformdirs",)


def copy_tree(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Copy the files of the repository as they are, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in listed:
        if wanted(name):
            original, copy = REPOSITORY / name, folder / name
            if original.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(original.read_bytes())


def install_beside(folder: Path) -> Path:
    """Build the wheel from a copy of the tree and install it into ``folder/beside``."""
    source = folder / "source"
    copy_tree(source, lambda name: name.startswith(("overlay/", "patches/")) or "/" not in name)
    beside = folder / "beside"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(beside), str(source)],
        check=True,
        timeout=600,
    )
    for name in NEEDED:
        package = importlib.util.find_spec(name)
        assert package is not None
        assert package.origin is not None
        shutil.copytree(Path(package.origin).parent, beside / name)
    return beside


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the right to write from every file and folder below ``folder``, and give it back."""
    places = [folder, *folder.rglob("*")]
    modes = {place: place.lstat().st_mode for place in places if not place.is_symlink()}
    for place, mode in modes.items():
        place.chmod(stat.S_IMODE(mode) & ~0o222)
    try:
        yield
    finally:
        for place, mode in modes.items():
            place.chmod(stat.S_IMODE(mode))
