"""Give programs of the proof an import path, and let one write models."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from overlay.results.invocation import is_offline

PACKAGE = Path(__file__).resolve().parents[1]


def link_packages(folder: Path, packages: Iterable[Path] = ()) -> Path:
    """Make a folder for an import path that holds ``overlay`` and the given packages only.

    The folder that the overlay was imported from will not do: the metadata beside it would make
    vLLM load the overlay's plugin.

    :param folder: where to make it; its parent exists.
    :param packages: folders of further packages, each linked by its own name.
    """
    folder.mkdir()
    for package in (PACKAGE, *packages):
        (folder / package.name).symlink_to(package.resolve(), target_is_directory=True)
    return folder


def append_path(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy environment variables with ``folder`` as the last entry of ``PYTHONPATH``.

    With ``--offline`` the hub's client is told, too.
    """
    before = environment.get("PYTHONPATH")
    path = f"{before}{os.pathsep}{folder}" if before else str(folder)
    offline = {"HF_HUB_OFFLINE": "1"} if is_offline() else {}
    return {**environment, "PYTHONPATH": path, **offline}


def as_stock(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy environment variables for an engine of the release's own files, without the plugin.

    :param folder: a copy of what is patched on disk as the release has it, or an empty one.
    """
    before = environment.get("PYTHONPATH")
    path = f"{folder}{os.pathsep}{before}" if before else str(folder)
    return {**environment, "PYTHONPATH": path, "OVERLAY": "off"}


class WriterFailed(RuntimeError):
    """The program that writes models ended without having written them.

    :ivar status: its exit status; :ivar output: all that it printed.
    """

    def __init__(self, writer: str, status: int, output: str) -> None:
        super().__init__(f"{writer} ended with status {status}:\n{output}")
        self.status, self.output = status, output


def write_models(
    python: Path | str,
    folder: Path,
    writer: str,
    environment: Mapping[str, str],
    packages: Iterable[Path] = (),
) -> None:
    """Write models into ``folder``, in an environment that has PyTorch.

    :param writer: the name of a module, which is run; :param packages: that it needs beside this.
    :param environment: the variables to run under.
    :raises WriterFailed: if it fails.
    :raises subprocess.TimeoutExpired: if it takes longer than ten minutes.
    """
    with tempfile.TemporaryDirectory(prefix="models-") as work:
        code = link_packages(Path(work, "code"), packages)
        # Standard output is for the answer of the command that asks for the models.
        writing = subprocess.run(
            [str(python), "-m", writer, str(folder.resolve())],
            cwd=work,
            env=append_path(environment, code),
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    if writing.returncode:
        raise WriterFailed(writer.rpartition(".")[2], writing.returncode, writing.stdout)
