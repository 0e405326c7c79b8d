"""Programs that a slow test installs in a folder, beside the packages that this environment has."""

import subprocess
import sys
from pathlib import Path

import pytest


def install(folder: Path, *packages: str) -> Path:
    """Install packages in a new folder, each without what it needs. Skips the test if PyPI cannot be reached."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"]
    process = subprocess.run([*command, str(folder), *packages], capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"pip cannot install the programs: {process.stderr.strip()[-300:]}")
    return folder
