"""The installed vLLM that engines run, as the release is or patched, and the GPU they would use.

An engine says after minutes that there is no GPU, in vLLM's words.  The kernel and torch's version
file tell at once; neither torch nor a driver is asked.

Here the proof asks the rest of the overlay; nothing else of it does, but for its command line.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from overlay.commands import diagnosis
from overlay.commands.request import Request
from overlay.commands.scene import resolve
from overlay.commands.status import plugin_may_add
from overlay.errors import Absent, OverlayError, TargetError, command
from overlay.on_disk import ledger as ledgers
from overlay.results import ModelRunner
from overlay.untrusted import printable


def interpreter(python: str | None) -> Path:
    """The program that runs the engines.

    :param python: an interpreter or a virtual environment; ``None`` for the one that runs this.
    :raises TargetError: if there is none.
    """
    if python is None:
        return Path(sys.executable)
    place = Path(os.path.expanduser(python))
    if os.sep not in python and not place.exists():
        place = Path(shutil.which(python) or python)
    if place.is_dir():
        place = place / "bin" / "python"
    if not os.access(place, os.X_OK):
        raise TargetError(
            f"--python {python}: expected an interpreter or a virtual environment that has one, "
            f"found no program at {place}"
        )
    # Not resolved: the link in a virtual environment is what makes Python find its packages.
    return Path(os.path.abspath(place))


def root_of(python: str | None) -> Path:
    """The folder that holds the vLLM of an interpreter.

    :param python: ``None`` for the one that runs this.
    :raises TargetError: if it has none.
    """
    try:
        root = resolve(Request(python=python)).root
    except Absent as error:
        place = sys.executable if python is None else python
        raise TargetError(
            f"{place}: expected a Python that has vLLM, found none there; name it with --python"
        ) from error
    assert root is not None, "an environment's vLLM is in a folder"
    return root


def expect_feature(python: str | None, feature: str, package: str) -> None:
    """Refuse a vLLM whose engines cannot have a feature, before one of them starts.

    :param python: as for ``root_of``; :param package: what the feature adds to vLLM, dotted.
    :raises OverlayError: if it is not on disk, and no plugin would add it in memory.
    """
    try:
        root = root_of(python)
        added = plugin_may_add(feature, _import_path(python, root))
    except OverlayError:
        return  # who starts the engines says what is missing
    if added or root.joinpath(*package.split(".")).is_dir():
        return
    raise OverlayError(
        f"expected a vLLM with the feature {feature}, found the one in {root} without it on disk, "
        f"and no plugin that adds it in memory; run {command('apply')}, then {command('status')}"
    )


def _import_path(python: str | None, root: Path) -> tuple[str, ...]:
    """The folders from which an interpreter's engines import."""
    elsewhere = diagnosis.environment_of(None, python)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = sys.path if elsewhere is None else elsewhere.path
    return (str(root), *own, *filter(None, inherited))


def known_runner(python: str | None, environment: Mapping[str, str]) -> ModelRunner | None:
    """The model runner that an interpreter's engines will have; ``None``: only vLLM can say."""
    try:
        target = resolve(Request(python=python))
    except OverlayError:
        target = None  # who starts the engines says what is missing
    return diagnosis.known_runner(target, environment)


def features_at_hand() -> dict[str, tuple[tuple[str, ...], bool]]:
    """Of each feature that vLLM may have: the modules that are its own, and whether it mends."""
    return {
        feature.id: (
            tuple(
                file.path.removesuffix(".py").replace("/", ".")
                for file in feature.added
                if file.path.endswith(".py") and file.path not in feature.shared
            ),
            feature.group is not None and feature.group.value == "mended",
        )
        for feature in Request().at_hand()
    }


def make_stock(python: str | None, folder: Path) -> None:
    """Make what an engine of the release's own files needs in ``folder``.

    Where the overlay is in memory alone, that is nothing: the plugin is off in such an engine.

    :param python: as for ``root_of``; :param folder: is made.
    :raises OverlayError: if the vLLM is not patched, neither on disk nor by a plugin.
    """
    root = root_of(python)
    folder.mkdir()
    if make_stock_copy(root, folder) or plugin_may_add(None, _import_path(python, root)):
        return
    mode = os.environ.get("OVERLAY")
    switch = f" with OVERLAY={printable(mode)}" if mode else ""
    raise OverlayError(
        f"expected a vLLM that is patched, on disk or in memory, found the one in {root} as the "
        f"release has it, and no plugin that would patch it{switch}; run {command('apply')}, then "
        f"{command('status')}: the overlay is compared with the release's own files"
    )


def torch_build(python: str | None) -> str | None:
    """What an interpreter's torch is built for, as ``cuda 13.0`` or ``cpu``; ``None``: unknown."""
    if python is None:
        return diagnosis.torch().built_for
    try:
        root = root_of(python)
    except OverlayError:
        return None  # who starts the engines says what is missing
    return diagnosis.torch_built_for(root / "torch")


def make_stock_copy(root: Path, folder: Path) -> bool:
    """Make ``folder/vllm``: links to the files below ``root``, the release's own for patched ones.

    Nothing of the installation changes. Bytecode is linked as well, but for the files that differ.

    :param root: the folder that holds the installed package.
    :param folder: an existing one, for the front of an import path.
    :returns: whether anything is applied on disk; without that, no copy is made.
    :raises OverlayError: if the ledger or a pristine copy cannot be read.
    """
    ledger = ledgers.load(root)
    if ledger is None:
        return False
    entries = {entry.path: entry for entry in ledger.entries}
    pristine = ledgers.copies(root)
    for place, _, names in os.walk(root / "vllm"):
        inside = Path(place).relative_to(root)
        for name in names:
            path = (inside / name).as_posix()
            if path not in entries and _source(path) not in entries:
                # A folder without files of the release would be a package, too.
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).symlink_to(root / path)
    for path, entry in entries.items():
        if entry.before is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(pristine(entry.before))
    return True


def _source(path: str) -> str:
    """The source of a file of bytecode, ``a/__pycache__/b.cpython-312.pyc``."""
    folder, _, name = path.rpartition("/")
    return f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"


#: What torch can be built for -> the places of the kernel that show a device for it.  A torch for
#: CPUs also serves accelerators of vLLM's plugins.
_PLACES = {
    "cuda": ("proc/driver/nvidia/gpus/*", "dev/nvidia[0-9]*", "dev/dxg"),
    "hip": ("dev/kfd", "dev/dxg"),
    "xpu": ("dev/dri/renderD*", "dev/dxg"),
    "cpu": ("dev/davinci[0-9]*", "dev/accel*", "dev/vfio/[0-9]*", "dev/metax*", "dev/mtgpu*"),
}

#: An argument of vLLM's engine, or a value in JSON, that chooses Ray.
_RAY = re.compile(r"(^|=|\")ray(\"|$)")

#: Values of CUDA_VISIBLE_DEVICES that hide every device.
_HIDDEN = ("", "-1", "NoDevFiles")


class DevicePlace(Enum):
    """Where an engine would run."""

    #: On a device, or it is not known that there is none.
    DEVICE = "a device"
    CPU = "the CPU"
    NOWHERE = "nowhere"


class Device(NamedTuple):
    """Where an engine would run, and by what that is known.

    :ivar text: what was found, as the part of a sentence; empty for a device.
    """

    place: DevicePlace
    text: str = ""


def device_of(
    python: str | None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Device:
    """Where the engines of an interpreter would run.

    :param python: as ``--python`` has it; ``None`` for the one that runs this.
    :param arguments: of vLLM's engine: with Ray, the devices may be on other nodes.
    :param root: of the kernel's files.
    """
    built = torch_build(python)
    kind = "" if built is None else built.partition(" ")[0]
    if kind not in _PLACES or any(map(_RAY.search, arguments)):
        return Device(DevicePlace.DEVICE)
    hidden = environment.get("CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and hidden in _HIDDEN:
        return Device(DevicePlace.NOWHERE, f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU")
    if any(place for pattern in _PLACES[kind] for place in root.glob(pattern)):
        return Device(DevicePlace.DEVICE)
    if kind == "cpu":
        return Device(DevicePlace.CPU, "its torch is built for CPUs")
    return Device(
        DevicePlace.NOWHERE, f"its torch is built for {built}, and this machine shows no device"
    )


def expect_device(
    device: Device, command: str, *, otherwise: str = "run it on a machine with a GPU"
) -> None:
    """Refuse what needs a GPU where there is none.

    :param otherwise: what to do.
    :raises OverlayError: naming what was found.
    """
    if device.place is DevicePlace.DEVICE:
        return
    raise OverlayError(
        f"overlay {command}: expected a GPU for vLLM, found none: {device.text}; {otherwise}"
    )
