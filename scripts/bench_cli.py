"""How long the commands take, whole processes, beside ``git apply --check`` of the same diff.

    python scripts/bench_cli.py [--site SITE_PACKAGES] [--beside CHECKOUT]... [--repeats 15]

A copy of an installed vLLM (``--site``; default: the one that this Python would import) is made
in a temporary folder and put first on the path of every command, so that no installation is
touched.  ``check --releases all`` runs on a warm cache: what is missing of it is fetched first,
which is not measured.  Prints each command's median as soon as it is measured, writes
``cli-<date>.json`` and prints a table.

``--beside`` measures the commands of another checkout as well, run by run in turns with this one's,
so that whatever else the machine does meets all alike.  Processor time (user and system, of all
processes of a command) says more than the clock where the machine is busy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from overlay import __version__
from overlay.cache import cache_folder
from overlay.targets.resolution import resolve

#: Seconds, from the project's aims.
AIMS = {"help": 0.15, "status, patched": 0.25, "check, pristine": 0.25, "check, all releases": 6.0}


@dataclass(frozen=True)
class Case:
    """One command to be measured.

    :ivar prepare: brings the copy into the state that the command is measured in.
    :ivar cold: forget before each run what is remembered of texts that were seen before.
    """

    name: str
    command: Sequence[str | Path]
    cwd: Path
    prepare: Callable[[], object] = lambda: None
    repeats: int | None = None
    cold: bool = False


@dataclass(frozen=True)
class Sample:
    """One process: seconds by the clock, and seconds of processor time with its children's."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class World:
    """What a checkout's commands are run on.

    :ivar site: a private copy of an installed vLLM; the checkout's cache is beside it.
    """

    checkout: Path
    site: Path

    @property
    def folder(self) -> Path:
        """Where its commands are run."""
        return self.site.parent

    @property
    def environment(self) -> dict[str, str]:
        """The variables of this process, with the copy as the vLLM that Python would import.

        Bytecode is written, as an installer does, but not into the checkout.
        """
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return {
            **kept,
            "OVERLAY_CACHE": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join([str(self.site), str(self.checkout)]),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
        }


def main() -> None:
    """Measure, write the figures, print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--site", type=Path, help="a folder that holds vllm/ and its .dist-info")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], help="a checkout to measure in turns"
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "bench" / "results")
    parser.add_argument("--without-releases", action="store_true", help="leave the releases out")
    arguments = parser.parse_args()
    checkouts = [REPOSITORY, *(place.resolve() for place in arguments.beside)]
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as name:
        worlds = [
            World(checkout, copy_site(arguments.site, Path(name, str(number), "site-packages")))
            for number, checkout in enumerate(checkouts)
        ]
        listed = [cases(world, releases=not arguments.without_releases) for world in worlds]
        figures = [
            figures_of(alike, worlds, arguments.repeats) for alike in zip(*listed, strict=True)
        ]
        document = {
            "machine": machine(REPOSITORY),
            "vllm": resolve(str(worlds[0].site)).vllm,
            "figures": [each[0] for each in figures],
        }
        document["beside"] = [
            {
                "commit": machine(world.checkout)["commit"],
                "figures": [each[number] for each in figures],
            }
            for number, world in enumerate(worlds[1:], 1)
        ]
    date = datetime.datetime.now(datetime.timezone.utc).date()
    path = arguments.output / f"cli-{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    for number, checkout in enumerate(checkouts):
        print(f"{checkout}:\n{table([each[number] for each in figures])}")
    print(f"written to {path}")


def copy_site(given: Path | None, copy: Path) -> Path:
    """A private copy of an installed vLLM and its metadata, and a cache beside it."""
    source = given.resolve() if given is not None else resolve(None).root
    assert source is not None, "what this Python imports always has a root"
    copy.mkdir(parents=True)
    # The releases that were fetched before, beside a memory of texts that is ours alone; copied,
    # since a link in the place of a cache is not trusted, and all would be fetched for each run.
    kept, cache = cache_folder() / "releases", copy.parent / "cache"
    cache.mkdir(mode=0o700)
    if kept.is_dir():
        shutil.copytree(kept, cache / "releases")
    for path in [source / "vllm", *source.glob("vllm*.dist-info")]:
        command = ["cp", "-r", "--reflink=auto", str(path), str(copy)]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
            shutil.copytree(path, copy / path.name, dirs_exist_ok=True)
    return copy


def cases(world: World, *, releases: bool) -> list[Case]:
    """What is measured, in order."""
    overlay = [sys.executable, "-m", "overlay"]
    site, folder, surroundings = world.site, world.folder, world.environment

    def quietly(*arguments: str) -> Callable[[], object]:
        def act() -> None:
            command = [*overlay, *arguments]
            subprocess.run(
                command, cwd=folder, env=surroundings, check=True, stdout=subprocess.DEVNULL
            )

        return act

    diff = folder / "overlay.diff"
    with diff.open("wb") as file:
        subprocess.run([*overlay, "diff"], cwd=folder, env=surroundings, check=True, stdout=file)
    revert = quietly("revert")
    listed = [
        Case("python, nothing", [sys.executable, "-c", ""], folder),
        Case("help", [*overlay, "--help"], folder),
        Case("list", [*overlay, "list"], folder),
        Case("status, pristine", [*overlay, "status"], folder, revert),
        Case("check, pristine", [*overlay, "check"], folder, revert),
        Case("check, first time", [*overlay, "check"], folder, revert, cold=True),
        Case("git apply --check", ["git", "apply", "--check", diff], site, revert),
        Case("status, patched", [*overlay, "status"], folder, quietly("apply")),
        Case("check, patched", [*overlay, "check"], folder, quietly("apply")),
        Case("apply, nothing to do", [*overlay, "apply"], folder, quietly("apply")),
    ]
    if releases:
        every = [*overlay, "check", "--releases", "all"]
        warm = quietly("check", "--releases", "all")
        listed.append(Case("check, all releases", every, folder, warm, repeats=5))
        listed.append(Case("the same, first time", every, folder, warm, repeats=5, cold=True))
    return listed


def figures_of(
    alike: Sequence[Case], worlds: Sequence[World], repeats: int
) -> list[dict[str, Any]]:
    """The figures of one case in each world, run by run in turns; a first run warms the caches."""
    for case in alike:
        case.prepare()
    runs: list[list[Sample]] = [[] for _ in alike]
    for _ in range((alike[0].repeats or repeats) + 1):
        for case, world, samples in zip(alike, worlds, runs, strict=True):
            if case.cold:
                shutil.rmtree(world.folder / "cache" / "syntax", ignore_errors=True)
            samples.append(sample(case, world.environment))
    figures = [figure(case, samples[1:]) for case, samples in zip(alike, runs, strict=True)]
    print(f"{alike[0].name}: {medians(figures)}", flush=True)
    return figures


def figure(case: Case, runs: Sequence[Sample]) -> dict[str, Any]:
    """The figures of one case."""
    walls = sorted(run.wall for run in runs)
    return {
        "case": case.name,
        "median_s": round(statistics.median(walls), 4),
        "min_s": round(walls[0], 4),
        "max_s": round(walls[-1], 4),
        "median_cpu_s": round(statistics.median(run.cpu for run in runs), 4),
        "min_cpu_s": round(min(run.cpu for run in runs), 4),
        "runs": len(runs),
        "aim_s": AIMS.get(case.name),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def medians(figures: Sequence[Mapping[str, Any]]) -> str:
    """The medians of one case, of this checkout and of those beside it, for whoever waits."""
    own, *others = (f"{each['median_s']:.3f} s" for each in figures)
    return f"{own}, beside it {', '.join(others)}" if others else own


def sample(case: Case, surroundings: Mapping[str, str]) -> Sample:
    """One run; standard output goes nowhere, and the command has to succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(
        list(map(str, case.command)),
        cwd=case.cwd,
        env=dict(surroundings),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Sample(wall, user + system)


def machine(checkout: Path) -> dict[str, Any]:
    """What the figures were measured on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "overlay": __version__,
        "commit": commit.stdout.strip() or None,
    }


def table(figures: Sequence[Mapping[str, Any]]) -> str:
    """The figures for reading."""
    rows = [f"{'case':<22} {'median':>8} {'min':>8} {'cpu':>8} {'aim':>6}"]
    for each in figures:
        aim = "" if each["aim_s"] is None else f"{each['aim_s']:.2f}"
        rows.append(
            f"{each['case']:<22} {each['median_s']:>8.3f} {each['min_s']:>8.3f} "
            f"{each['median_cpu_s']:>8.3f} {aim:>6}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
