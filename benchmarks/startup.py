"""The time of `transduce --help` as a whole process, and of the first sentence of an exported model.

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


def seconds(arguments: list[str], text: str = "") -> float:
    """Return the time of the command from start to end, with `text` on its standard input."""
    command = [sys.executable, "-m", "transduce", *arguments]
    started_at = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, input=text, text=True)
    return time.perf_counter() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--exported", type=Path)
    args = parser.parse_args()
    commands = [*COMMANDS, ["translate", str(args.exported)]] if args.exported else COMMANDS
    print("| command | median s | worst s |\n|---|---|---|")
    for arguments in commands:
        times = [seconds(arguments, "A dog runs.\n") for _ in range(args.runs)]
        print(f"| transduce {' '.join(arguments)} | {statistics.median(times):.2f} | {max(times):.2f} |")


if __name__ == "__main__":
    main()
