"""`transduce translate --placeholders` on lines in which placeholders were planted: how many lines keep each once.

    python benchmarks/placeholders.py MODEL test.en test.de [--lines 1000] [--without]

A line gets one to three different placeholders, of seven kinds, between its words. --without translates without the
option, for comparison. Printed: lines that keep all; lines that do not, by whether the program named them; and BLEU of
the outputs without the placeholders.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from transduce.data.text import read_lines
from transduce.evaluation.metrics import bleu


def placeholder(kind: str, draw: random.Random) -> str:
    """Return a placeholder of a kind, nearly always another one."""
    word = "".join(draw.choice("abcdefghiklmnoprstuvwz") for _ in range(draw.randint(3, 8)))
    match kind:
        case "braces":
            return draw.choice((f"{{{word}}}", f"{{{{{word}}}}}", f"${{{word}}}", f"{{{draw.randint(0, 99)}}}"))
        case "percent":
            return draw.choice((f"%({word})s", f"%{draw.randint(1, 99)}$s", f"%.{draw.randint(1, 9)}f"))
        case "tag":
            return draw.choice((f'<x id="{draw.randint(1, 99)}"/>', f'<a href="{word}">', f"</{word}>"))
        case "url":
            return draw.choice((f"https://www.{word}.org/{word[::-1]}?id={draw.randint(1, 99)}", f"www.{word}.de"))
        case "mail":
            return f"{word}.{word[::-1]}@{word}.com"
        case "unit":
            return f"{draw.randint(1, 999)}{draw.choice((' km', ' kg', ' %', '%', ' °C', ' €', ' GB', 'mm'))}"
        case _:
            return chr(draw.randint(0x1F600, 0x1F64F))


KINDS = ("braces", "percent", "tag", "url", "mail", "unit", "emoji")


def planted(line: str, draw: random.Random) -> tuple[str, list[str]]:
    """Return a line with placeholders between its words, and the placeholders."""
    words = line.split()
    names = [placeholder(kind, draw) for kind in draw.sample(KINDS, draw.randint(1, 3))]
    for name in names:
        words.insert(draw.randint(0, len(words)), name)
    return " ".join(words), names


def main() -> None:
    """Plant, translate, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("src", type=Path)
    parser.add_argument("ref", type=Path)
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    draw = random.Random(1)
    sources, references = (list(read_lines(path))[: arguments.lines] for path in (arguments.src, arguments.ref))
    lines = [planted(line, draw) for line in sources]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "planted"
        text.write_text("".join(f"{line}\n" for line, _ in lines), encoding="utf-8")
        command = [sys.executable, "-m", "transduce", "translate", str(arguments.model), "--input", str(text)]
        command += [] if arguments.without else ["--placeholders"]
        process = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    named = {int(number) for number in re.findall(r"planted:(\d+): expected", process.stderr)}
    outputs = process.stdout.splitlines()
    wrong = {
        number
        for number, ((_, names), output) in enumerate(zip(lines, outputs, strict=True), start=1)
        if any(output.count(name) != 1 for name in names)
    }
    plain = []
    for (_, names), output in zip(lines, outputs, strict=True):
        for name in names:
            output = output.replace(name, " ")
        plain.append(" ".join(output.split()))
    print(f"{len(lines) - len(wrong):,} of {len(lines):,} lines keep each placeholder once")
    print(f"{len(wrong & named):,} do not and are named, {len(wrong - named):,} do not and are not named")
    print(f"BLEU without the placeholders: {bleu(plain, references):.1f}")


if __name__ == "__main__":
    main()
