"""Checks of lines and pairs: correct text gives no finding."""

import time

import pytest

from transduce.cleaning.line_checks import check_line, check_pair, main_script


@pytest.mark.parametrize(
    "line",
    [
        "AT&T, R&D; if a < b then c > d",
        "Tシャツを3枚買った。",
        "5 µSv and 3 kΩ",
        "Ein Château in São Paulo, naïve Œuvre",
        "I <3 you",
        "你好，世界",
        "ÂGE: NÃO",
    ],
)
def test_correct_lines_have_no_finding(line: str) -> None:
    assert list(check_line(line)) == []


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        ("In 1,000 years", "In 1.000 Jahren"),
        ("10 000 euros", "10000 Euro"),
        ("at 3:00 pm", "um 15:00 Uhr"),
        ("12 inches", "30 Zentimeter"),
        ("It cost 500 dollars.", "Es war teuer."),
        ("１９８４年", "1984"),
        ("٢٠٢٤", "2024"),
        ("see www.dog.org.", "siehe www.dog.org"),
        ("Los Angeles", "Los Angeles"),
        ("No no no, stop it", "Nein, nein, nein!"),
        ("He laughed: ha ha ha", "他笑了：哈哈哈"),
        ("my great-great-great-grandfather", "mein Urururgroßvater"),
        ("It cost 1 000 000 000 000 dollars.", "Es kostete 1.000.000.000.000 Dollar."),
    ],
)
def test_correct_translations_have_no_finding(src: str, tgt: str) -> None:
    assert list(check_pair(src, tgt)) == []


def test_script_of_a_line() -> None:
    lines = {
        "Hello": "Latin",
        "Привет, Tom": "Cyrillic",
        "日本": "Han",
        "これは": "Hiragana",
        "12 ー!": "",
        "Ａ": "Latin",
    }
    assert {line: main_script(line) for line in lines} == lines


def test_the_time_for_a_line_of_numbers_is_proportional_to_its_length() -> None:
    src, tgt = (
        "; ".join(f"{n % 64:06b}".translate(digits) for n in range(20_000)) for digits in ({48: "2"}, {49: "3"})
    )
    start = time.process_time()
    assert list(check_pair(src, tgt)) == []  # a table
    assert time.process_time() - start < 2
    few = ["; ".join(line.split("; ")[:50]) for line in (src, tgt)]
    assert [kind for kind, _ in check_pair(*few)] == ["numbers"]
