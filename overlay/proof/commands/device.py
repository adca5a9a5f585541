"""What the engines of ``verify`` and ``bench`` would run on, asked before any of them starts.

An engine says after minutes that there is no GPU, in vLLM's words.  The kernel and torch's version
file tell at once; neither torch nor a driver is asked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from overlay.errors import OverlayError

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


class Place(Enum):
    """Where an engine would run."""

    #: On a device, or it is not known that there is none.
    DEVICE = "a device"
    CPU = "the CPU"
    NOWHERE = "nowhere"


class Device(NamedTuple):
    """Where an engine would run, and by what that is known.

    :ivar text: what was found, as the part of a sentence; empty for a device.
    """

    place: Place
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
    built = _built_for(python)
    if built is None or any(map(_RAY.search, arguments)):
        return Device(Place.DEVICE)
    kind = built.partition(" ")[0]
    hidden = environment.get("CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and hidden in _HIDDEN:
        return Device(Place.NOWHERE, f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU")
    if any(place for pattern in _PLACES[kind] for place in root.glob(pattern)):
        return Device(Place.DEVICE)
    if kind == "cpu":
        return Device(Place.CPU, "its torch is built for CPUs")
    return Device(
        Place.NOWHERE, f"its torch is built for {built}, and this machine shows no device"
    )


def _built_for(python: str | None) -> str | None:
    """``cuda 13.0``, ``cpu`` and the like; ``None`` where it is not known."""
    from overlay.commands import diagnosis

    if python is None:
        built = diagnosis.torch().built_for
    else:
        from overlay.commands.request import Request
        from overlay.commands.scene import resolve

        try:
            target = resolve(Request(python=python))
        except OverlayError:
            return None  # who starts the engines says what is missing
        built = None if target.root is None else diagnosis.torch_built_for(target.root / "torch")
    known = built is not None and built.partition(" ")[0] in _PLACES
    return built if known else None


def expect_device(
    device: Device, command: str, *, otherwise: str = "run it on a machine with a GPU"
) -> None:
    """Refuse what needs a GPU where there is none.

    :param otherwise: what to do.
    :raises OverlayError: naming what was found.
    """
    if device.place is Place.DEVICE:
        return
    raise OverlayError(
        f"overlay {command}: expected a GPU for vLLM, found none: {device.text}; {otherwise}"
    )
