"""Packaging of vllm-overlay; the settings of the tools are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INIT = (HERE / "overlay" / "__init__.py").read_text(encoding="utf-8")
README = HERE / "README.md"

setup(
    name="vllm-overlay",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Source patches for an installed vLLM, applied by their anchors: "
    "speculative-decoding drafters in full CUDA graphs on the V1 model runner",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.10",
    # The patches stand beside the package in the source tree, where people read and write
    # them, and inside it as data once installed.
    packages=[*find_packages(include=["overlay", "overlay.*"]), "overlay.patches"],
    package_dir={"overlay.patches": "patches"},
    package_data={"overlay": ["py.typed"], "overlay.patches": ["*.md", "**/*"]},
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
        "rich>=13",
        "unidiff>=0.7.5",
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
            "mypy>=1.10",
            "pytest>=8",
            "ruff>=0.6",
            "setuptools>=70.1",
            "uv>=0.4",
        ],
    },
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Software Distribution",
        "Typing :: Typed",
    ],
)
