"""Write the pages of the reference: the Python API from docstrings, every setting, and the help of every command.

`docs/conf.py` calls `write_reference` before each build. The source is parsed, not imported, so that the API pages need
neither PyTorch nor a model. Docstrings are Markdown, and stay as they are.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

# The packages in the paper's order, as in CONTRIBUTING.md. A package that is missing here comes last.
ORDER = """
train translate evaluate check config data model training decoding evaluation storage interop download serve
family studies demo cli
""".split()

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def write_reference(folder: Path) -> None:
    """Write `api.md`, `modules/*.md`, `settings.md` and `commands.md` below `folder`."""
    modules = sorted(module_names(), key=reading_order)
    pages = {"api.md": api_page(), "settings.md": settings_page(), "commands.md": commands_page()}
    pages |= {f"modules/{name}.md": module_page(name) for name in modules}
    pages["modules.md"] = modules_page(modules)
    folder.joinpath("modules").mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.md"), *folder.glob("modules/*.md")]:
        if str(path.relative_to(folder)) not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, "utf-8")


def module_names() -> Iterator[str]:
    for path in (SOURCE / "transduce").rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__") and name != "transduce":
            yield name


def reading_order(module: str) -> tuple[int, str]:
    part = module.split(".")[1]
    return (ORDER.index(part) if part in ORDER else len(ORDER), module)


def parse(module: str) -> ast.Module:
    return ast.parse(source_path(module).read_text("utf-8"))


def source_path(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# --- Pages


def api_page() -> str:
    """Return the page of the names that `import transduce` offers, in the order of use."""
    homes = {
        alias.asname or alias.name: node.module
        for node in ast.walk(parse("transduce"))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names = [name for name in public_names(parse("transduce")) or () if name in homes]
    first = [
        "load",
        "fit",
        "Translator",
        "Translation",
        "AlignedWord",
        "Scored",
        "Attended",
        "DecodingOptions",
        "Sampling",
        "Transformer",
        "Config",
    ]
    names.sort(key=lambda name: (first.index(name) if name in first else len(first), name))
    texts = [
        "# Python API",
        markdown(docstring(parse("transduce"))),
        f"Names of the package: {', '.join(f'`{n}`' for n in names)}.",
    ]
    for name in names:
        node = next((node for node in parse(homes[name]).body if getattr(node, "name", None) == name), None)
        if node:
            lines = source_path(homes[name]).read_text("utf-8").splitlines()
            texts += [f"## {name}", describe(node, lines, f"transduce.{name}")]
    return "\n\n".join(texts) + "\n"


def modules_page(modules: list[str]) -> str:
    rows = [f"| [`{name}`](modules/{name}.md) | {first_sentence(docstring(parse(name)))} |" for name in modules]
    tree = "\n".join(["```{toctree}", ":hidden:", "", *(f"modules/{name}" for name in modules), "```"])
    text = "Programs first, then the packages in the paper's order. Import paths below `transduce` may change."
    return "\n\n".join(["# Modules", text, "\n".join(["| module | contents |", "|---|---|", *rows]), tree]) + "\n"


def module_page(module: str) -> str:
    tree = parse(module)
    lines = source_path(module).read_text("utf-8").splitlines()
    names = public_names(tree)
    package_names = public_names(parse("transduce")) or []
    texts = [f"# {module}", f"```{{py:module}} {module}\n```", markdown(docstring(tree))]
    nodes = {getattr(node, "name", "_"): node for node in tree.body}  # of several overloads, the last
    for name, node in nodes.items():
        if name in names if names is not None else not name.startswith("_"):
            texts.append(describe(node, lines, name, is_indexed=name not in package_names))
    return "\n\n".join(text for text in texts if text) + "\n"


def settings_page() -> str:
    """Return a table of all settings with type, default and meaning, from the dataclasses of `config.schema`."""
    module = "transduce.config.schema"
    lines = source_path(module).read_text("utf-8").splitlines()
    texts = ["# Settings", "Set a value with `--set SECTION.NAME=VALUE`, or in your own recipe."]
    classes = {node.name: node for node in parse(module).body if isinstance(node, ast.ClassDef)}
    for section in ("model", "data", "train", "search"):
        node = classes[f"{section.title()}Config"]
        texts += [f"## {section}", markdown(docstring(node))]
        rows = [
            f"| `{section}.{name}` | {code(kind)} | {code(default)} | {table_cell(comment)} |"
            for name, kind, default, comment in fields(node, lines)
        ]
        texts.append("\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(texts) + "\n"


def commands_page() -> str:
    """Return the help of the program and of each of its commands, as the program prints it."""
    texts = ["# Commands", "The text that `transduce COMMAND --help` prints."]
    for command in [[], *commands([])]:
        texts.append(f"## {' '.join(['transduce', *command])}\n\n```text\n{help_text(command)}\n```")
    return "\n\n".join(texts) + "\n"


def commands(above: list[str]) -> Iterator[list[str]]:
    """Yield every command below `above`, depth first, in the order in which the help lists them."""
    for name in re.findall(r"^│ ([a-z]\S*)  ", help_text(above), re.MULTILINE):
        yield [*above, name]
        if f"Usage: {' '.join(['transduce', *above, name])} COMMAND" in help_text([*above, name]):
            yield from commands([*above, name])


HELP_TEXTS: dict[tuple[str, ...], str] = {}


def help_text(command: list[str]) -> str:
    """Return what `transduce COMMAND --help` prints on a terminal of 80 columns without colours."""
    if tuple(command) not in HELP_TEXTS:
        environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(SOURCE)}
        environment.pop("FORCE_COLOR", None)
        argv = [sys.executable, "-m", "transduce", *command, "--help"]
        result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True, encoding="utf-8")
        HELP_TEXTS[tuple(command)] = "\n".join(line.rstrip() for line in result.stdout.strip("\n").splitlines())
    return HELP_TEXTS[tuple(command)]


# --- Objects


def describe(node: ast.stmt, lines: list[str], name: str, is_indexed: bool = True) -> str:
    """Return the Markdown of a function or a class with its fields and public methods.

    A name that is described twice is indexed once: on the page of the package.
    """
    options = [] if is_indexed else [":no-index:"]
    if isinstance(node, FunctionNode):
        return directive("function", f"{name}{signature(node)}", [*options, markdown(docstring(node))], depth=0)
    if not isinstance(node, ast.ClassDef):
        return ""
    methods = {child.name: child for child in node.body if isinstance(child, FunctionNode)}
    parts = [*options, markdown(docstring(node))]
    if is_dataclass(node):
        rows = [
            f"| `{field}` | {code(kind)} | {code(default)} | {table_cell(comment)} |"
            for field, kind, default, comment in fields(node, lines)
        ]
        if rows:
            parts.append("\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows]))
    for method_name, method in methods.items():
        if not method_name.startswith("_"):
            is_property = any(ast.unparse(d) in ("property", "cached_property") for d in method.decorator_list)
            receiver = [] if method.args.posonlyargs or not method.args.args else method.args.args[:1]
            title = method_name if is_property else f"{method_name}{signature(method, without=receiver)}"
            kind = "property" if is_property else "method"
            parts.append(directive(kind, title, [*options, markdown(docstring(method))], depth=1))
    head = name
    if "__init__" in methods:
        head += signature(methods["__init__"], without=methods["__init__"].args.args[:1], returns=False)
    return directive("class", head, parts, depth=0)


def directive(kind: str, title: str, parts: list[str], depth: int) -> str:
    fence = "`" * (8 - 2 * depth)
    return "\n".join([f"{fence}{{py:{kind}}} {title}", "\n\n".join(part for part in parts if part), fence])


def signature(node: FunctionNode, without: list[ast.arg] | None = None, returns: bool = True) -> str:
    text = ast.unparse(node.args)
    for argument in without or ():
        text = re.sub(rf"^{argument.arg}(: [^,]+)?(, )?", "", text)
    return f"({text})" + (f" -> {ast.unparse(node.returns)}" if returns and node.returns else "")


def fields(node: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and the comment at the end of the line of each public field of a dataclass."""
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name) and child.target.id[0] != "_":
            end = (child.end_lineno or child.lineno) - 1
            comment = lines[end].encode()[child.end_col_offset or 0 :].decode().partition("#")[2].strip()
            default = ast.unparse(child.value) if child.value else ""
            yield child.target.id, ast.unparse(child.annotation), default, comment


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def public_names(tree: ast.Module) -> list[str] | None:
    """Return the names in `__all__`, or None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    return None


# --- Text


def docstring(node: ast.Module | ast.ClassDef | FunctionNode) -> str:
    """Return the docstring without its indentation; code examples keep theirs."""
    indent = " " * node.body[0].col_offset
    text = ast.get_docstring(node, clean=False) or ""
    return "\n".join(line.removeprefix(indent).rstrip() for line in text.splitlines()).strip()


def markdown(text: str) -> str:
    """Return a docstring as Markdown.

    - `<`, `*` and `_` outside of code are characters, not tags or emphasis.
    - A line "name: meaning", or a name with its meaning indented below it, becomes an item of a list.
    - An underlined line is bold, and "Raises ..." starts a paragraph. Everything below "Examples" is code.
    """
    text, _, examples = text.partition("\nExamples\n---")
    rows: list[str] = []
    lines = text.split("\n")
    for row, next_row in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch("-{3,}", row):
            rows[-1:] = [f"**{rows[-1]}**", ""]
        elif argument := re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*): ", row):
            rows.append(escape(f"- `{argument[1]}`: {row[argument.end() :]}"))
        elif re.fullmatch(r"[a-z_]\w*", row) and re.match(r" {4}\S", next_row):
            rows.append(f"- `{row}`:")
        elif row.startswith("    "):
            rows.append(row)  # code, or more of the item above
        else:
            rows += ["", escape(row)] if row.startswith("Raise") else [escape(row)]
    if examples:
        rows += ["", "**Examples**", "", *(f"    {row}" for row in examples.split("\n")[1:])]
    return "\n".join(rows)


def escape(row: str) -> str:
    pieces = re.split(r"(`[^`]+`)", row)
    return "".join(piece if piece.startswith("`") else re.sub(r"([<*_])", r"\\\1", piece) for piece in pieces)


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return table_cell(re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0])


def table_cell(text: str) -> str:
    return escape(text).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""
