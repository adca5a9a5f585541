"""Builders of small fake vLLMs: a source tree, an installation, a wheel, an sdist.

With ``package`` they build another package that is laid out alike, such as ``vllm_ascend``.
Every builder takes ``extra``, a mapping of path (``vllm/...``) to bytes that is laid over
``files(version)``; ``None`` for bytes takes a file away.  The fake package raises when it is
imported, so that a test which imports its target by mistake fails.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, "bytes | None"]

_PROPOSER = '''\
"""A proposer that is laid out as vLLM's is."""


class SpecDecodeBaseProposer:
    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.model = None

    def load_model(self, target) -> None:
        self.model = target.draft()

    def propose(self, tokens):
        drafts = [self._first(tokens)]
        for step in range(self.num_tokens - 1):
            hidden = self.model(drafts[-1])
            drafts.append(hidden)
        return drafts

    def _first(self, tokens):
        return self.model(tokens)
'''

_RUNNER = '''\
"""A model runner that is laid out as vLLM's is."""


class GPUModelRunner:
    def __init__(self, drafter) -> None:
        self.drafter = drafter

    def capture_model(self) -> int:
        captured = 0
        for size in (1, 2, 4):
            captured += self._capture(size)
        return captured

    def _capture(self, size: int) -> int:
        return size


def helper(value):
    return value
'''


def files(
    version: str = "0.26.0", extra: Files | None = None, package: str = "vllm"
) -> dict[str, bytes]:
    """The files of a fake vLLM, path to bytes."""
    found: dict[str, bytes | None] = {
        "vllm/__init__.py": b'raise RuntimeError("the fake vLLM was imported")\n',
        "vllm/_version.py": f"__version__ = version = '{version}'\n".encode(),
        "vllm/py.typed": b"",
        "vllm/v1/__init__.py": b"",
        "vllm/v1/spec_decode/__init__.py": b"",
        "vllm/v1/spec_decode/proposer.py": _PROPOSER.encode(),
        "vllm/v1/worker/__init__.py": b"",
        "vllm/v1/worker/gpu_model_runner.py": _RUNNER.encode(),
    }
    if package != "vllm":
        found = {path.replace("vllm/", f"{package}/", 1): data for path, data in found.items()}
    found.update(extra or {})
    return {path: content for path, content in sorted(found.items()) if content is not None}


def tree(
    folder: Path, version: str = "0.26.0", extra: Files | None = None, package: str = "vllm"
) -> Path:
    """Write a source tree without any metadata under ``folder``; return ``folder``."""
    _write(folder, files(version, extra, package))
    return folder


def site_packages(
    folder: Path,
    version: str = "0.26.0",
    extra: Files | None = None,
    distribution: str = "vllm",
    package: str = "vllm",
) -> Path:
    """Write an installation (``vllm/`` and a ``.dist-info`` with RECORD); return ``folder``."""
    _write(folder, _wheel_files(version, extra, distribution, installed=True, package=package))
    return folder


def wheel(
    folder: Path,
    version: str = "0.26.0",
    extra: Files | None = None,
    distribution: str = "vllm",
    tag: str = "cp38-abi3-manylinux_2_31_x86_64",
    package: str = "vllm",
) -> Path:
    """Build a wheel in ``folder``; return its path."""
    path = folder / f"{distribution.replace('-', '_')}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _wheel_files(version, extra, distribution, package=package).items():
            archive.writestr(name, content)
    return path


def sdist(
    folder: Path,
    version: str = "0.26.0",
    extra: Files | None = None,
    distribution: str = "vllm",
    package: str = "vllm",
) -> Path:
    """Build an sdist in ``folder``; return its path."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    path = folder / f"{stem}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"PKG-INFO": _metadata(version, distribution), "setup.py": b"raise SystemExit(1)\n"}
    contents.update(files(version, extra, package))
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"{stem}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def record(contents: Mapping[str, bytes], record_path: str) -> bytes:
    """The RECORD of ``contents``, itself listed without a hash as the standard asks."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        rows.writerow([name, f"sha256={digest.decode()}", len(content)])
    rows.writerow([record_path, "", ""])
    return out.getvalue().encode()


def _wheel_files(
    version: str,
    extra: Files | None,
    distribution: str,
    installed: bool = False,
    package: str = "vllm",
) -> dict[str, bytes]:
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    contents = files(version, extra, package)
    contents[f"{info}/METADATA"] = _metadata(version, distribution)
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: fake\nRoot-Is-Purelib: false\n"
    contents[f"{info}/top_level.txt"] = f"{package}\n".encode()
    if installed:
        contents[f"{info}/INSTALLER"] = b"pip\n"
    contents[f"{info}/RECORD"] = record(contents, f"{info}/RECORD")
    return contents


def _metadata(version: str, distribution: str) -> bytes:
    return f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n\nFake.\n".encode()


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
