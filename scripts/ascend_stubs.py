"""Put empty libraries in the place of CANN's, so that torch_npu can be imported without an NPU.

``python scripts/ascend_stubs.py``, run by the Python of the environment that has torch_npu in it.
Needs a C compiler (``cc``) and ``nm``.

torch_npu is linked against libraries of CANN, all of whose functions must be there when it is
loaded.  Here each of them returns 0 and does nothing: operators' schemas, signatures and Python
modules can be read, and no device is found.  vllm-ascend also imports two packages that no
environment of the tests has: ``acl``, which comes with CANN, and torchvision, whose wheels need
CUDA; their stubs fail where they are called.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

#: The libraries that torch_npu names; the functions are all in the first one.
LIBRARIES = (
    *("libascendcl", "libhccl", "libacl_op_compiler"),
    *("libge_runner", "libgraph", "libacl_tdt_channel"),
)
#: Names of CANN's C functions among all that torch_npu expects from elsewhere.
FUNCTION = re.compile(r"^(?:acl|rt[A-Z]|Msprof|Hccl)\w+$")

_ACL_RT = '''"""A part of CANN that has no device here."""


def memcpy(*arguments: object) -> None:
    raise RuntimeError("there is no NPU, so nothing can be copied from or to one")
'''

_TORCHVISION = '''"""A stub: modules of vLLM name parts of torchvision while they are imported."""

__version__ = "0.0.0"
__path__: list[str] = list(globals().get("__path__", []))


class _Named:
    """Whatever is named can be subscripted and has the interpolation modes of Pillow."""

    NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
    NEAREST_EXACT = NEAREST

    def __class_getitem__(cls, item: object) -> type:
        return cls


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Named,), {})
'''
_TORCHVISION_MODULES = (
    *("__init__", "io", "ops", "transforms/__init__", "transforms/functional"),
    *("transforms/v2/__init__", "transforms/v2/functional"),
)


def functions(library: Path) -> list[str]:
    """The functions of CANN that a library expects, by name.

    :raises subprocess.CalledProcessError: if ``nm`` cannot read it.
    """
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], check=True, text=True, capture_output=True
    )
    names = (line.split()[-1] for line in listed.stdout.splitlines() if line.strip())
    return sorted({name for name in names if FUNCTION.match(name)})


def build(torch_npu: Path) -> None:
    """Build the libraries into ``lib/`` of torch_npu, where it looks for them.

    :raises subprocess.CalledProcessError: if the compiler fails.
    """
    libraries = [*torch_npu.glob("lib/*.so"), *torch_npu.glob("*.so")]
    expected = sorted({name for library in libraries for name in functions(library)})
    first, *others = LIBRARIES
    sources = {first: "".join(f"long {name}(void) {{ return 0; }}\n" for name in expected)}
    sources.update({name: f"int {name}_is_a_stub;\n" for name in others})
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            file = Path(folder, f"{name}.c")
            file.write_text(source, encoding="ascii")
            library = torch_npu / "lib" / f"{name}.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(file)], check=True)


def write_packages(site: Path) -> None:
    """Write the stubs of ``acl`` and torchvision."""
    (site / "acl").mkdir(exist_ok=True)
    (site / "acl" / "__init__.py").write_text("", encoding="ascii")
    (site / "acl" / "rt.py").write_text(_ACL_RT, encoding="ascii")
    for module in _TORCHVISION_MODULES:
        path = site / "torchvision" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_TORCHVISION, encoding="ascii")


def main() -> int:
    """Build and write all of it; the exit status."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    missing = [tool for tool in ("cc", "nm") if shutil.which(tool) is None]
    if missing:
        print(f"expected {' and '.join(missing)} on the PATH: install a C compiler and binutils")
        return 2
    site = Path(sysconfig.get_path("platlib"))
    build(site / "torch_npu")
    write_packages(site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
