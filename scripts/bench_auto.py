"""What auto-apply costs a process of vLLM: ``python3 scripts/bench_auto.py [--write]``.

Each sample is a process of its own, as most of vLLM's are, in the engine's environment (see
``environment.py``) with the overlay beside it: it imports what a process of vLLM has imported when
it loads its plugins, and then times the entry point's import and its call.  (A fork would pay for
every page of its parent's memory that Python touches.)  What the hook adds while the targets are
imported (finding, verifying, reading, comparing, writing the record) is measured in further
processes and counted in full, although Python's own way of reading a module is no longer taken
then.  The case that is applied on disk runs in a private copy of vLLM.  Takes some minutes, on a
machine that does nothing else.

``--write`` puts the result into ``bench/results/auto-<date>.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = 9
PATCHES = "patches, warm cache"
#: name -> (environment, limit in ms or None)
CASES: dict[str, tuple[dict[str, str], float | None]] = {
    "off": ({"OVERLAY": "off"}, 30.0),
    "nothing to do (disk, nothing applied)": ({"OVERLAY": "disk"}, 30.0),
    "nothing to do (auto, no feature fits)": ({"BENCH_EMPTY": "1"}, 30.0),
    # The shipped features are looked at, and the release has what is asked for.
    "nothing to do (auto, upstreamed)": ({"OVERLAY_FEATURES": "active-lora-graphs"}, 30.0),
    PATCHES: ({}, 150.0),
}
ON_DISK: dict[str, tuple[dict[str, str], float | None]] = {"applied on disk": ({}, 30.0)}


def sample() -> dict[str, Any]:
    """Wall and CPU milliseconds of loading and calling the plugin, here and now."""
    if os.environ.pop("BENCH_EMPTY", None):
        from overlay._features import sources as shipped

        empty = Path(tempfile.gettempdir()) / "bench-auto-no-features"
        empty.mkdir(exist_ok=True)
        shipped.shipped_folder = lambda: empty
    wall, cpu = time.perf_counter(), time.process_time()
    from overlay.plugin import register

    register()
    taken = (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3
    from overlay.in_memory import plugin as process

    assert process._process is not None
    return {"wall_ms": taken[0], "cpu_ms": taken[1], "way": process._process.activation.way}


def importing() -> dict[str, Any]:
    """Milliseconds that the hook takes while the targets are imported."""
    import importlib

    from overlay.in_memory import import_hook as hook
    from overlay.in_memory.running import RunningProcess
    from overlay.plugin import register

    spent = 0.0

    def timed(function: Any) -> Any:
        def around(*arguments: Any, **named: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent += time.perf_counter() - began

        return around

    finder, loader = hook.PatchFinder, hook.PatchedLoader
    for owner, names in (
        (finder, ("_require_planned",)),
        (loader, ("get_code", "_show_source")),
        (RunningProcess, ("executed",)),
    ):
        for name in names:
            setattr(owner, name, timed(getattr(owner, name)))
    register()
    for name in (
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.cudagraph_dispatcher",
        "vllm.v1.spec_decode.llm_base_proposer",
        "vllm.v1.sample.rejection_sampler",
    ):
        importlib.import_module(name)
    return {"spent_ms": spent * 1e3}


def inside(work: str) -> dict[str, Any]:
    """One sample, in the process of an engine that has imported what it has by then."""
    import vllm.engine.arg_utils

    return {"vllm": vllm.__version__, **{"sample": sample, "importing": importing}[work]()}


def started(python: Path, environment: dict[str, str], work: str) -> dict[str, Any]:
    """What ``inside`` finds in a new process."""
    done = subprocess.run(
        [str(python), str(Path(__file__).resolve()), "--inside", work],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(
    python: Path, told: dict[str, str], limit: float | None, way: str | None
) -> tuple[str, dict[str, Any]]:
    """The release, and what a case takes.

    :param way: by which way its processes must be patched; ``None`` for by none.
    """
    started(python, told, "sample")  # makes the cache, and the bytecode of the overlay
    taken = [started(python, told, "sample") for _ in range(SAMPLES)]
    ways = {one["way"] for one in taken}
    if not ways <= ({way} if way else {"none", "off"}):
        raise RuntimeError(f"expected processes that are patched by way of {way}, found {ways}")
    case: dict[str, Any] = {
        unit: {
            "min": round(min(one[unit] for one in taken), 1),
            "median": round(statistics.median(one[unit] for one in taken), 1),
        }
        for unit in ("wall_ms", "cpu_ms")
    }
    return taken[0]["vllm"], case | {"limit_ms": limit}


def outside() -> dict[str, Any]:
    """Start ``inside`` with the overlay beside the engine, and add what the machine is."""
    sys.path.insert(0, str(ROOT))
    from scripts import environment
    from tests.in_memory.installed import install_beside

    python = environment.engine_python()
    with tempfile.TemporaryDirectory(prefix="bench-auto-") as made_for_this:
        folder = Path(made_for_this)
        beside = install_beside(folder)
        (folder / "run").mkdir(mode=0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OVERLAY", "PYTHON"))}
        told = kept | {
            "PYTHONPATH": str(beside),
            "OVERLAY_CACHE": str(folder / "cache"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
        }
        make = [sys.executable, str(ROOT / "tests/engine/private_copy.py"), str(python)]
        made = subprocess.run(
            [*make, str(folder / "engine")], stdout=subprocess.PIPE, text=True, check=True
        )
        patched, site = made.stdout.split()
        apply = [sys.executable, "-m", "overlay", "apply", site]
        subprocess.run(apply, cwd=folder, env=told, stdout=sys.stderr, check=True, timeout=100)
        load = os.getloadavg()[0]
        cases: dict[str, Any] = {}
        for name, (more, limit) in CASES.items():
            way = "memory" if name == PATCHES else None
            vllm, cases[name] = measured(python, told | more, limit, way)
        cases[PATCHES]["while_importing_ms"] = round(
            min(started(python, told, "importing")["spent_ms"] for _ in range(3)), 1
        )
        for name, (more, limit) in ON_DISK.items():
            _, cases[name] = measured(Path(patched), told | more, limit, "disk")
    return {
        "date": datetime.date.today().isoformat(),  # noqa: DTZ011  (the day here)
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, load {load:.1f} before",
        "samples": SAMPLES,
        "vllm": vllm,
        "cases": cases,
    }


def main() -> int:
    """Measure and print; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--inside", choices=("sample", "importing"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(inside(asked.inside)))
        return 0
    found = outside()
    text = json.dumps(found, indent=2)
    print(text)
    if asked.write:
        place = ROOT / "bench" / "results" / f"auto-{found['date']}.json"
        place.write_text(text + "\n", encoding="utf-8")
    late = [
        name
        for name, case in found["cases"].items()
        if case["limit_ms"] is not None
        # The fastest sample: on a machine that others use, the slower ones measure them.
        and case["wall_ms"]["min"] + case.get("while_importing_ms", 0) > case["limit_ms"]
    ]
    for name in late:
        print(f"too slow: {name}")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
