"""Sites with the sources of a release of vllm-ascend and of the vLLM that it is for."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from overlay.package import VLLM, package_named
from tests.support.release_sources import unpack

ASCEND = package_named("vllm_ascend")
#: Both finals have the same drafter, and so have the release candidates of 0.30.
QUICK = ("0.23.0.post1", "0.30.0rc2")


#: 0.21.0rc1 imports what vLLM has since 0.22.0, and asks for 0.22.1 in twenty places.
_OTHER_VLLM = {"0.21.0rc1": "0.22.1"}


def vllm_of(release: str) -> str:
    """The release of vLLM that a release of vllm-ascend is for: as a rule the same number."""
    return _OTHER_VLLM.get(release, Version(release).base_version)


def make_site(release: str, folder: Path) -> Path:
    """A site with both packages, as vllm-ascend is on an A2."""
    unpack(VLLM, vllm_of(release), folder)
    unpack(ASCEND, release, folder)
    # Its build writes this one.
    build = folder / "vllm_ascend" / "_build_info.py"
    build.write_text("__device_type__ = 'A2'\n", encoding="utf-8")
    return folder
