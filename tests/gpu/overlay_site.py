#!/usr/bin/env python3
"""Install this repository's overlay into a folder of its own, for a host without a network.

    overlay_site.py FOLDER

``FOLDER`` is then on ``PYTHONPATH`` beside a pristine vLLM: it holds the package, its metadata
(by which vLLM finds the plugin) and the two of its dependencies that a vLLM need not have.  Needs
pip and hatchling in the Python that runs it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.in_memory.installed import install_beside


def main() -> None:
    """Build, install, and move into place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if folder.exists() and not (folder / "overlay").is_dir() and any(folder.iterdir()):
        parser.error(f"{folder} holds something else; name a folder of your own")
    with tempfile.TemporaryDirectory() as work:
        made = install_beside(Path(work))
        for cache in made.rglob("__pycache__"):
            shutil.rmtree(cache)  # of another Python
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
    print(*sorted(place.name for place in folder.iterdir()))


if __name__ == "__main__":
    main()
