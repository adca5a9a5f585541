#!/usr/bin/env python3
"""What vLLM compiled ahead of time for pristine code is not run for patched code, and vice versa.

A patch turns the sign of a model's last hidden state, below the first line of its ``forward``: for
vLLM the code's name, line and file on disk stay what they were.  Engines that share one cache then
say by their tokens whose code they run:

- ``pristine`` fills the cache and agrees with the oracle; ``pristine again`` loads from it;
- ``patched`` finds the cache full and must not agree; ``patched again`` loads its own;
- ``patched, caches not kept apart`` takes the remedy out, on a copy of the cache that ``pristine``
  filled: it is handed the stale code.  So the other results mean something.

    compile_caches.py --site SITE --overlay FOLDER --out result.json
"""

from __future__ import annotations

import datetime
import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent))

from tests.engine.engine_launch import EngineFailed, launch, write_models
from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu import installation

LIMIT = 150.0
#: What vLLM logs when it takes what was compiled before.
LOADED = "Directly load AOT compilation"
FEATURE = """
id = "turned"
title = "The last hidden state with the other sign"
why = "To be seen in the tokens."
upstream = "https://example.com/1"
releases = "0.20.0..0.33.0"
"""
PATCH = """Description: The other sign
Origin: the tests
Last-Update: 2026-11-20

--- a/vllm/model_executor/models/llama.py
+++ b/vllm/model_executor/models/llama.py
@@ -435,1 +435,2 @@ LlamaModel.forward
         hidden_states, _ = self.norm(hidden_states, residual)
+        hidden_states = -hidden_states
"""


@dataclass(frozen=True)
class Run:
    """One engine.

    :ivar agrees: whether its tokens must be the oracle's; :ivar loads: whether it must load what
        was compiled before, and not compile.
    """

    name: str
    mode: str
    agrees: bool
    loads: bool
    cache: str = "vllm"
    pre: tuple[str, ...] = ()


#: Those of one wave run at the same time.
WAVES = (
    (Run("pristine", "off", agrees=True, loads=False),),
    (
        Run("patched", "auto", agrees=False, loads=False),
        Run(
            "patched, caches not kept apart",
            "auto",
            agrees=True,
            loads=True,
            cache="vllm-copy",
            pre=("tests.gpu.compile_caches:keep_nothing_apart",),
        ),
    ),
    (
        Run("pristine again", "off", agrees=True, loads=True),
        Run("patched again", "auto", agrees=False, loads=True),
    ),
)


def keep_nothing_apart() -> None:
    """Take the remedy out of the plugin of this process; a ``pre`` hook."""
    from overlay.in_memory import module_cache as caches

    caches.keep_apart = lambda key, required=False: None


def write_feature(folder: Path) -> Path:
    """The patches folder that turns the sign."""
    feature = folder / "turned-patches/turned"
    (feature / "10-sign").mkdir(parents=True)
    (feature / "feature.toml").write_text(FEATURE)
    (feature / "10-sign/0.20.0..0.33.0.patch").write_text(PATCH)
    return feature.parent


def run_one(
    run: Run, spec: EngineSpec, env: dict[str, str], work: Path, logs: Path
) -> dict[str, Any]:
    """One engine; what was found, and whether it is as it must be."""
    own = {"OVERLAY": run.mode, "VLLM_CACHE_ROOT": str(work / run.cache)}
    found: dict[str, Any] = {"run": run.name, "mode": run.mode}
    try:
        result = launch(
            sys.executable, replace(spec, pre=run.pre), env={**env, **own}, timeout=LIMIT
        )
        (logs / f"{run.name}.log").write_text(result["log"])
    except EngineFailed as error:
        (logs / f"{run.name}.log").write_text(error.output)
        return {**found, "ok": False, "failed": str(error)[-3000:]}
    requests = result["requests"]
    agree = sum(bool(one["tokens_ok"]) for one in requests)
    loads = LOADED in result["log"]
    # A sign turned leaves no request right by chance.
    right = agree == (len(requests) if run.agrees else 0)
    said = [line[-300:] for line in result["log"].splitlines() if "vllm-overlay: " in line]
    return {
        **found,
        "ok": right and loads == run.loads,
        "agree": f"{agree} of {len(requests)}",
        "loads": loads,
        "said": said,
        **{name: result[name] for name in ("vllm", "torch", "device", "seconds")},
    }


def main() -> int:
    """Run the waves and write the result; 1 if an engine ran code of another one."""
    args = installation.parser(__doc__).parse_args()
    work = Path(tempfile.mkdtemp(prefix="caches-"))
    models = str(work / "models")
    write_models(sys.executable, Path(models))
    env = installation.environment(
        args.site,
        args.overlay,
        work,
        OVERLAY_PATCHES=str(write_feature(work)),
        # In all of them: vLLM's keys depend on it, and the plugin sets it where it patches.
        VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY="OVERLAY",
    )
    spec = EngineSpec(
        models,
        None,
        requests=make_requests(8, tokens=24),
        enforce_eager=False,
        compilation={"cudagraph_mode": "PIECEWISE"},
        engine={"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 1 << 30},
        packages=(str(TESTS),),
    )
    logs = args.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for wave in WAVES:
        with ThreadPoolExecutor(len(wave)) as pool:
            results += pool.map(lambda run: run_one(run, spec, env, work, logs), wave)
        if wave is WAVES[0]:
            shutil.copytree(work / "vllm", work / "vllm-copy")
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        args.out.write_text(json.dumps({"date": date, "runs": results}, indent=1) + "\n")
    for one in results:
        shown = one.get("failed") or f"{one['agree']} agree, loads {one['loads']}"
        print("ok" if one["ok"] else "FAILED", f"{one['run']}:", shown, flush=True)
    return 0 if all(one["ok"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
