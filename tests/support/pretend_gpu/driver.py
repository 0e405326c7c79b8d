"""A driver for the pretend GPU. torch asks for drivers when it is first imported, so this must come before it."""

import ctypes
import importlib.util
import subprocess
import tempfile
from pathlib import Path


def load_driver() -> None:
    """Compile guard.cpp and load it. Needs a C++ compiler."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / "lib" / name))
    with tempfile.TemporaryDirectory() as out:
        guard = Path(out) / "guard.so"
        words = ["c++", "-std=c++20", "-shared", "-fPIC", "-w", f"-I{folder / 'include'}", f"-L{folder / 'lib'}"]
        source = Path(__file__).with_name("guard.cpp")
        subprocess.run([*words, str(source), "-o", str(guard), "-lc10", "-ltorch_cpu"], check=True)
        ctypes.CDLL(str(guard))
