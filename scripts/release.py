"""Make what is released in ``dist/``, and check it.

``python3 scripts/release.py [--tag vX.Y.Z] [--untested]`` needs a package index and uv, on PATH or
of the development environment (``python3 scripts/environment.py dev``).  It builds the source
distribution and the wheel twice, which must give the same bytes, looks at them as an index does,
runs the fast tests out of the source distribution alone, and writes an SBOM (CycloneDX) of the
wheel with what it depends on, and the version's part of CHANGELOG.md as the notes.

How a release is made: set ``__version__`` in ``overlay/__init__.py`` and the date in CHANGELOG.md,
run this, and push the tag ``vX.Y.Z``: ``.github/workflows/release.yml`` does the rest.

Exit 0: ``dist/`` may be published.  1: something is wrong with it, as the last line says.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".cache/dev/bin"
TWINE = "twine==7.0.0"
CYCLONEDX = "cyclonedx-bom==7.5.0"


class ReleaseFailed(Exception):
    """What was made may not be published."""


def run(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a command; the time of a build is nobody's, so that anybody gets the same bytes.

    :raises ReleaseFailed: if it does not end with 0.
    """
    print("+", *command, flush=True)
    variables = {name: text for name, text in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    variables["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), str(TOOLS)))
    try:
        done = subprocess.run(command, cwd=folder, env=variables, check=False)
    except FileNotFoundError as error:
        raise ReleaseFailed(
            f"expected {error.filename} on PATH or in {TOOLS}, found none: "
            "`python3 scripts/environment.py dev` brings it"
        ) from error
    if done.returncode != 0:
        raise ReleaseFailed(f"this command failed: {' '.join(map(str, command))}")


def version() -> str:
    """The version, from the one place that has it."""
    text = (ROOT / "overlay/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if match is None:
        raise ReleaseFailed("overlay/__init__.py: expected __version__, found none")
    return match[1]


def notes(number: str, changelog: str, *, tag: str | None) -> str:
    """What CHANGELOG.md says of a version.

    :param tag: what is released under; without it, nothing has to have a date yet.
    :raises ReleaseFailed: if there is no such part, or the tag is another version's.
    """
    match = re.search(
        rf"^## \[{re.escape(number)}\] - (\S+)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if match is None:
        raise ReleaseFailed(f"CHANGELOG.md: expected a part '## [{number}] - DATE', found none")
    if tag is not None and tag != f"v{number}":
        raise ReleaseFailed(f"expected the tag v{number} of overlay/__init__.py, found {tag}")
    if tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", match[1]):
        raise ReleaseFailed(f"CHANGELOG.md: expected the date of {number}, found {match[1]!r}")
    return match[2].strip() + "\n"


def build(out: Path, work: Path) -> tuple[Path, Path]:
    """Build twice, and compare: the source distribution and the wheel.

    :raises ReleaseFailed: if two builds differ.
    """
    for folder in (out, work / "again"):
        run("uv", "build", "--quiet", "--out-dir", folder)
    files = sorted([*out.glob("*.whl"), *out.glob("*.tar.gz")], key=lambda path: path.suffix)
    for path in files:
        if path.read_bytes() != (work / "again" / path.name).read_bytes():
            raise ReleaseFailed(f"two builds of {path.name} differ")
    sdist, wheel = files
    return sdist, wheel


def test(sdist: Path, work: Path) -> None:
    """Run the fast tests as somebody does who has the source distribution and nothing else."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")
    python = work / "tests/bin/python"
    run("uv", "venv", "--quiet", work / "tests")
    run("uv", "pip", "install", "--quiet", "--python", python, f"{source}[dev]")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=source)


def list_parts(wheel: Path, number: str, bill: Path, work: Path) -> None:
    """Write the SBOM of a wheel that is installed with what it depends on; it is validated."""
    run("uv", "venv", "--quiet", work / "parts")
    run("uv", "pip", "install", "--quiet", "--python", work / "parts/bin/python", wheel)
    # The tool takes no version from anywhere else.
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = re.sub(r"^dynamic = .*$", f'version = "{number}"', settings, flags=re.MULTILINE)
    (work / "pyproject.toml").write_text(settings, encoding="utf-8")
    tool = ("uv", "tool", "run", "--from", CYCLONEDX, "cyclonedx-py", "environment")
    about = ("--pyproject", work / "pyproject.toml", "--output-reproducible")
    run(*tool, *about, "--output-format", "JSON", "--output-file", bill, work / "parts")


def release(out: Path, *, tag: str | None, tested: bool) -> None:
    """Make everything that is published, in an empty folder.

    :raises ReleaseFailed: if any of it is not as it has to be.
    """
    number = version()
    text = notes(number, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag=tag)
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = build(out, work)
        run("uv", "tool", "run", "--from", TWINE, "twine", "check", "--strict", sdist, wheel)
        list_parts(wheel, number, out / f"vllm_overlay-{number}.cdx.json", work)
        if tested:
            test(sdist, work)
    (out / "notes.md").write_text(text, encoding="utf-8")
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>9,} bytes  {path.name}")


def main(arguments: Sequence[str]) -> int:
    """Make and check; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="the tag that is released: it has to be the version's")
    parser.add_argument("--untested", action="store_true", help="run no tests out of the sdist")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="dist/; it is emptied")
    asked = parser.parse_args(arguments)
    try:
        release(asked.out.resolve(), tag=asked.tag, tested=not asked.untested)
    except ReleaseFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
