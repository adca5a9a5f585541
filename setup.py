"""Packaging of vllm-overlay; the settings of the tools are in pyproject.toml."""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

HERE = Path(__file__).resolve().parent
INIT = (HERE / "overlay" / "__init__.py").read_text(encoding="utf-8")
README = HERE / "README.md"


def scratch() -> str | None:
    """A temporary folder for what a build writes, where the sources are read-only."""
    if os.access(HERE, os.W_OK):
        return None
    folder = tempfile.mkdtemp(prefix="vllm-overlay-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Build(build):
    """``build``, also from sources that nobody may write to (a bind mount of BuildKit)."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = scratch() or self.build_base


class EggInfo(egg_info):
    """``egg_info``, also from sources that nobody may write to."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = scratch() or self.egg_base


class BuildPy(build_py):
    """``build_py`` into an empty folder.

    setuptools keeps ``build/lib`` and only adds to it.  The range of a patch is its file's name,
    so an older checkout's patch would be installed beside the one that replaces it.
    """

    def run(self) -> None:
        package = Path(self.build_lib, "overlay").resolve()
        if not self.editable_mode and package != HERE / "overlay" and package.exists():
            shutil.rmtree(package)
        super().run()


setup(
    cmdclass={"build": Build, "build_py": BuildPy, "egg_info": EggInfo},
    name="vllm-overlay",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Source patches for an installed vLLM, applied by their anchors: "
    "speculative-decoding drafters in full CUDA graphs on the V1 model runner",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The vllm-overlay contributors",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    project_urls={
        "vLLM": "https://github.com/vllm-project/vllm",
        "Upstream pull request": "https://github.com/vllm-project/vllm/pull/34880",
    },
    keywords="vllm speculative-decoding cuda-graphs patch overlay",
    python_requires=">=3.10",
    # The patches stand beside the package in the source tree, where people read and write
    # them, and inside it as data once installed.
    packages=[*find_packages(include=["overlay", "overlay.*"]), "overlay.patches"],
    package_dir={"overlay.patches": "patches"},
    package_data={
        "overlay": ["py.typed", "*.pyi"],
        "overlay._features": ["*.json"],
        "overlay.report": ["*.json"],
        "overlay.patches": ["*.md", "**/*"],
    },
    exclude_package_data={"overlay.patches": ["**/__pycache__/*", "**/*.pyc"]},
    entry_points={
        "console_scripts": ["overlay = overlay.__main__:main"],
        # vLLM loads it in each of its processes; see docs/auto-apply.md.
        "vllm.general_plugins": ["overlay = overlay.plugin:register"],
    },
    install_requires=[
        "click>=8.1",
        "filelock>=3.12",
        "packaging>=22",
        "platformdirs>=3",
        "requests>=2.31",
        "unidiff>=1.0",
        "rich>=13",
        "urllib3>=1.26",
        'tomli>=2; python_version < "3.11"',
    ],
    extras_require={
        # For bench/ and the plot of docs/performance.md; neither CI nor a user needs it.
        "bench": [
            "matplotlib>=3.8",
            "py-spy>=0.4",
        ],
        "dev": [
            "hypothesis>=6.100",
            "jsonschema>=4.18",
            "mypy>=1.10",
            "mutmut>=3.8",
            "promql-parser>=0.5",
            "pytest>=8",
            "pytest-xdist>=3.8",
            "pyyaml>=6",
            "ruff>=0.6",
            "setuptools>=70.1",
            "types-requests>=2.31",
            "uv>=0.4",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Software Distribution",
        "Typing :: Typed",
    ],
)
