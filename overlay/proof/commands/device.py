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
from overlay.proof.commands.installation import torch_build

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
