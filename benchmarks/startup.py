"""How long does `transduce --help` take, as a whole process? Goal: under 0.4 s.

python benchmarks/startup.py [--runs 11]
"""

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = (["--help"], ["translate", "--help"], ["train", "--help"], ["--version"])


def seconds(arguments: list[str]) -> float:
    started_at = time.perf_counter()
    subprocess.run([sys.executable, "-m", "transduce", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    print("| command | median s | worst s |\n|---|---|---|")
    for arguments in COMMANDS:
        taken = [seconds(arguments) for _ in range(runs)]
        print(f"| transduce {' '.join(arguments)} | {statistics.median(taken):.2f} | {max(taken):.2f} |")


if __name__ == "__main__":
    main()
