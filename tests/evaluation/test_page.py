"""The parts that all pages share: readable colours, a strict policy, whole files, durations."""

import re
from pathlib import Path

import pytest

from transduce.evaluation import attention_page, run_report, study_report
from transduce.evaluation.page import duration, fill_page, write_page
from transduce.storage.atomic_folder import replacement

TEMPLATES = Path(fill_page.__code__.co_filename).parent
COLOURS = {
    "run_report.html": ("ink", "faint", "training", "validation", "marked"),
    "study_report.html": ("ink", "faint", "here", "there", "first", "second", "third", "fourth"),
    "attention_page.html": ("ink", "faint", "accent", "second"),
}
FILES = {"attention_page.html": attention_page.FILES}
POLICIES = {
    "run_report.html": run_report.POLICY,
    "study_report.html": study_report.POLICY,
    "attention_page.html": attention_page.POLICY,
}


def fill(template: str) -> str:
    """Return a page whose fields are empty."""
    fields = set(re.findall(r"\$(\w+)", (TEMPLATES / template).read_text("utf-8"))) - {"style", "version"}
    return fill_page(template, dict.fromkeys(fields, ""), POLICIES[template], FILES.get(template))


def schemes(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the colours of the light and of the dark scheme, by name."""
    dark = re.compile(r"@media screen and \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)
    colour = re.compile(r"--(\w+): #(\w{6});")
    light_colours = dict(colour.findall(dark.sub("", page)))
    dark_colours = dict(colour.findall("".join(dark.findall(page))))
    return light_colours, dark_colours


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("template", COLOURS)
def test_colours_have_the_contrast_of_wcag(template: str) -> None:
    """4.5 to 1, the ratio that WCAG requires for text, in both schemes."""
    light, dark = schemes(fill(template))
    assert light.keys() == dark.keys() and light.keys() >= {*COLOURS[template], "paper"}
    for scheme in (light, dark):
        for name in COLOURS[template]:
            darker, lighter = sorted(luminance(scheme[colour]) for colour in (name, "paper"))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


@pytest.mark.parametrize("template", COLOURS)
def test_the_policy_of_a_page_forbids_loading(template: str) -> None:
    page = fill(template)
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]+)"', page)
    assert page.startswith("<!doctype html>") and page.count("<meta") == 4
    assert policy and policy[1].startswith("default-src 'none';") and "$" not in policy[1]


def test_a_page_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    write_page(path, "new \udce9")
    assert path.read_text("utf-8") == "new \\udce9" and [*tmp_path.iterdir()] == [path]


def test_two_pages_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with replacement(path) as first, replacement(path) as second:
        first.write_text("first", encoding="utf-8")
        second.write_text("second", encoding="utf-8")
    assert path.read_text("utf-8") == "first" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (5_969, "99 min"), (6_000, "1 h 40 min"), (187_200, "2 d 4 h")],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words
