#!/usr/bin/env python3
"""A Triton kernel of a module that is patched in memory is compiled from the patched text.

A patch adds 1000 to what a kernel of the drafter writes.  Processes that share one Triton cache
launch it: pristine, patched in memory, and pristine again.  Needs one GPU, takes half a minute.

    patched_kernels.py --site SITE --overlay FOLDER --out result.json
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu import installation

#: Name of this module where `PYTHONPATH` names the repository.
NAME = f"tests.gpu.{Path(__file__).stem}"
KERNEL = "eagle_prepare_inputs_padded_kernel"
ADDED = 1000
FEATURE = """
id = "shifted"
title = "A kernel that writes something else"
why = "To be seen in its output."
upstream = "https://example.com/1"
releases = "0.20.0..0.33.0"
"""
PATCH = f"""Description: Something else
Origin: the tests
Last-Update: 2026-11-20

--- a/vllm/v1/spec_decode/utils.py
+++ b/vllm/v1/spec_decode/utils.py
@@ -170,1 +170,1 @@ {KERNEL}
-    index_to_sample = q_last_tok_idx - num_rejected_tokens
+    index_to_sample = q_last_tok_idx - num_rejected_tokens + {ADDED}
"""


def launch_kernel() -> dict[str, Any]:
    """Load the plugins as vLLM does, and launch the kernel; in a process of its own."""
    import inspect

    import torch
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.v1.spec_decode import utils

    kernel = getattr(utils, KERNEL)
    drafted = torch.tensor([3, 6, 9], dtype=torch.int32, device="cuda")
    valid = torch.tensor([1, 4, 2], dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, 4, 8, 12], dtype=torch.int32, device="cuda")
    indices, rejected = torch.zeros_like(valid), torch.zeros_like(valid)
    kernel[(3,)](drafted, valid, starts, indices, rejected, 3)
    torch.cuda.synchronize()
    return {
        "indices": indices.tolist(),
        "rejected": rejected.tolist(),
        "compiled_from": kernel.fn.__code__.co_filename,
        "module_file": utils.__file__,
        "source_is_patched": f"+ {ADDED}" in inspect.getsource(kernel.fn),
        "device": torch.cuda.get_device_name(0),
    }


def write_feature(folder: Path) -> Path:
    """The patches folder that changes the kernel."""
    feature = folder / "patches/shifted"
    (feature / "10-kernel").mkdir(parents=True)
    (feature / "feature.toml").write_text(FEATURE)
    (feature / "10-kernel/0.20.0..0.33.0.patch").write_text(PATCH)
    return feature.parent


def main() -> int:
    """Launch the kernel in each mode and compare; 1 if one ran other code than it should."""
    args = installation.parser(__doc__).parse_args()
    work = Path(tempfile.mkdtemp(prefix="kernels-"))
    env = os.environ | installation.environment(
        args.site,
        args.overlay,
        work,
        OVERLAY_PATCHES=str(write_feature(work)),
        TRITON_CACHE_DIR=str(work / "triton"),
    )
    code = f"import json, {NAME} as it; print('RESULT', json.dumps(it.launch_kernel()))"
    results = []
    for mode in ("off", "auto", "off", "auto"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**env, "OVERLAY": mode},
            cwd=work,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        found = json.loads(lines[-1][7:]) if lines else {"failed": done.stderr[-3000:]}
        expected = [index + (ADDED if mode == "auto" else 0) for index in (0, 7, 9)]
        found["ok"] = (
            found.get("indices") == expected
            and found["rejected"] == [3, 0, 2]
            and found["source_is_patched"] == (mode == "auto")
            and (found["compiled_from"] == found["module_file"]) == (mode == "off")
        )
        results.append({"mode": mode, **found})
        print("ok" if found["ok"] else "FAILED", mode, found.get("indices"), flush=True)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"date": date, "kernel": KERNEL, "runs": results}, indent=1))
    return 0 if all(one["ok"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
