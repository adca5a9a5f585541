"""Record parts with the overlay of the working folder: ``python -m tests.recording.worker``.

Its arguments are the folder in which parts get theirs, the folder of releases, and the parts.  What
each answers goes to ``PART.json`` there.  Every part is recorded in a fork.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

from overlay.report import progress
from tests.recording import lives, processes, releases, states
from tests.recording.recorder import Recorder, warm


def parts() -> dict[str, partial[None]]:
    """All parts, those of the small world first; their names are those of files."""
    found = {name: partial(work) for name, work in lives.PARTS.items()}
    for state in states.STATES:
        found[f"states/{state}"] = partial(states.record, state=state)
        found[f"processes/{state}"] = partial(processes.record, state=state)
    found["releases/all"] = partial(releases.record_all)
    for release in lives.RELEASES:
        found[f"releases/{release}"] = partial(releases.record, release=release)
    return found


def is_released(part: str) -> bool:
    """Whether a part needs the shipped features and the sources of vLLM."""
    return part.startswith("releases/")


def main(place: Path, kept: Path, names: list[str]) -> int:
    """Record some parts, one after the other; 1 where one could not be."""
    warm()
    progress.PATIENCE = progress.STILL = threading.TIMEOUT_MAX  # what is slow must not show
    known, failed = parts(), 0
    for name in names:
        if (child := os.fork()) == 0:
            try:
                recorder = Recorder(place / name.replace("/", "-"), {Path.cwd(): "CODE"}, kept)
                known[name](recorder)
                file = place / f"{name.replace('/', '-')}.json"
                file.write_text(json.dumps(recorder.answers))
            except BaseException:  # noqa: BLE001 - the fork ends here, whatever it was
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        failed |= os.waitpid(child, 0)[1]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
