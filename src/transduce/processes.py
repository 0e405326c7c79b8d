"""Start other Python processes of this program, which import nothing from the working folder.

`python -m` and an empty entry of PYTHONPATH would put the working folder first on the import path. A file there that is
called queue.py or random.py would be executed instead of Python's own module.
"""

import os
import sys
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this program. Its environment needs PYTHONPATH=`import_path()`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def import_path() -> str:
    """Return the value of PYTHONPATH with which a process finds this package: the value here, without empty entries."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*filter(None, entries), str(Path(__file__).parents[1])])
