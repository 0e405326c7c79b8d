"""How long does `transduce --help` take, as a whole process, and a first sentence without torch?

    python benchmarks/startup.py [--runs 11] [--exported FOLDER]

FOLDER: a model exported with --to ctranslate2. Goals: under 0.4 s for help, under 0.8 s for the sentence.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = (["--help"], ["translate", "--help"], ["train", "--help"], ["--version"])


def seconds(arguments: list[str], given: str = "") -> float:
    """How long the command takes from its start to its end, with `given` on its standard input."""
    command = [sys.executable, "-m", "transduce", *arguments]
    started_at = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, input=given, text=True)
    return time.perf_counter() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--exported", type=Path)
    asked = parser.parse_args()
    commands = [*COMMANDS, ["translate", str(asked.exported)]] if asked.exported else COMMANDS
    print("| command | median s | worst s |\n|---|---|---|")
    for arguments in commands:
        taken = [seconds(arguments, "A dog runs.\n") for _ in range(asked.runs)]
        print(f"| transduce {' '.join(arguments)} | {statistics.median(taken):.2f} | {max(taken):.2f} |")


if __name__ == "__main__":
    main()
