"""What killed engines leave in shared memory goes, and what others use or left before stays."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from tests.support import shared_memory

NAMES = ("33633-tp:0-[0-1]-cpushm_0", "psm_001c1100")
HOLD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_only_what_nobody_has_mapped_goes(tmp_path: Path) -> None:
    used, left = (tmp_path / name for name in NAMES)
    for file in (used, left, tmp_path / "other"):
        file.write_bytes(bytes(mmap.PAGESIZE))
    command = [sys.executable, "-c", HOLD, str(used)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mapped\n"
        found = shared_memory.present(tmp_path)
        assert found == {used, left}
        assert shared_memory.remove(found, shared_memory.mapped()) == [left]
    assert {file.name for file in tmp_path.iterdir()} == {used.name, "other"}
    assert shared_memory.remove({used}, shared_memory.mapped()) == [used]
