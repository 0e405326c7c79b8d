"""README and docs: links, commands, settings, tests and names that they mention exist."""

import dataclasses
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import code_blocks, transduce_commands
from support.toy_task import ROOT

import transduce
from transduce.cli.main import app
from transduce.config.kinds import KINDS, config_class
from transduce.config.schema import SECTIONS

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/log/*.md"), ROOT / "benchmarks" / "README.md"]
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_readme_fits_on_a_page() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_first_two_sh_blocks_of_the_readme_are_those_that_ci_runs() -> None:
    demo, tests = code_blocks(ROOT / "README.md", "sh")
    assert demo.splitlines()[-1] == "transduce demo"
    assert tests.splitlines()[-1].startswith("pytest ")


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            anchors = {anchor(title) for title in re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)}
            assert heading in anchors, f"{page.name}: {target}"


@every_page
def test_every_command_is_accepted_by_the_command_line(page: Path) -> None:
    """Parse, but do not run, each command in a code block."""
    for command in transduce_commands(page):
        words = [word for word in shlex.split(command.replace("...", ""), comments=True)[1:]]
        if ">" in words or "<" in words:
            words = words[: min(words.index(sign) for sign in "<>" if sign in words)]
        app.parse_args(words, exit_on_error=False, print_error=False)


def setting_names(section: str) -> set[str]:
    """Return the keys of a section of the configuration: for the model, the keys of all kinds of model."""
    classes = map(config_class, KINDS) if section == "model" else [SECTIONS[section]]
    return {field.name for cls in classes for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem)
def test_settings_exist(page: Path) -> None:
    for section, name in re.findall(r"\b(model|data|train|search)\.([a-z]\w+)=", page.read_text("utf-8")):
        assert name in setting_names(section), f"{page.name}: {section}.{name}"
    for section, name in re.findall(r"`(model|data|train|search)\.([a-z]\w+)`", page.read_text("utf-8")):
        assert name in ("py", "safetensors") or name in setting_names(section), f"{page.name}: {section}.{name}"


@every_page
def test_scripts_and_tests_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for script in re.findall(r"\bpython (\S+\.py)", text):
        assert (ROOT / script).is_file(), f"{page.name}: {script}"
    for path, words in re.findall(r"`pytest (?:-m \w+ )?(tests/\S+?)(?: -k ([^`]+))?`", text):
        files = sorted(ROOT.glob(path)) if path.endswith(".py") else sorted((ROOT / path).rglob("test_*.py"))
        names = " ".join([*map(str, files), *(file.read_text("utf-8") for file in files)])
        assert files and re.search(rf"test_\w*{words}", names), f"{page.name}: {path} has no test {words!r}"


def test_contributing_and_changelog_name_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        assert any((folder / path).exists() for folder in (ROOT / "src" / "transduce", ROOT)), path
    moves = re.findall(r"^\| .+ \| (.+) \|$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    for module in re.findall(r"`([\w.]+\.[\w.]+)`", "\n".join(moves)):
        assert (ROOT / "src" / "transduce" / (module.replace(".", "/") + ".py")).is_file(), module


def paper_map() -> Iterator[tuple[str, str]]:
    """Yield (file, name) for each name in the table of the paper map."""
    for row in (ROOT / "docs" / "paper-map.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        if len(cells) == 4 and ".py`" in cells[2]:
            (file,) = re.findall(r"`([^`]+)`", cells[2])
            yield from ((file, name) for name in re.findall(r"`([^`]+)`", cells[3]))


@pytest.mark.parametrize(("file", "name"), list(paper_map()))
def test_paper_map_names_what_is_there(file: str, name: str) -> None:
    assert (ROOT / "src" / "transduce" / file).is_file()
    value = importlib.import_module("transduce." + file.removesuffix(".py").replace("/", "."))
    fields: dict[str, object] = {}
    for part in name.split("."):
        fields = getattr(value, "__dataclass_fields__", {})
        value = fields[part] if part in fields else getattr(value, part)


def test_paper_map_has_the_sections_of_the_paper() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text("utf-8")
    sections = ["3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "5.4", "6.1", "6.3"]
    assert [section for section in sections if f"§{section}" not in text] == []
    assert len(list(paper_map())) > 40


def test_api_page_describes_every_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "reference", raising=False)
    reference = importlib.import_module("reference")
    page = reference.api_page()
    for name in transduce.__all__:
        assert re.search(rf"\{{py:(class|function|exception)\}} transduce\.{name}\b", page), name
    settings = reference.settings_page()
    for section, kind in SECTIONS.items():
        for field in kind.__dataclass_fields__:
            assert f"| `{section}.{field}` |" in settings
