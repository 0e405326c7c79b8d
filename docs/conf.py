"""The documentation site, built by Sphinx from the Markdown files of this folder: sphinx-build -W docs site."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from reference import SOURCE, write_reference  # noqa: E402

package = (SOURCE / "transduce" / "__init__.py").read_text("utf-8")

project = "transduce"
release = package.partition('__version__ = "')[2].partition('"')[0]
copyright = "the authors of transduce; Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = f"transduce {release}"
html_copy_source = False
highlight_language = "none"
myst_heading_anchors = 3
python_maximum_signature_line_length = 100
suppress_warnings = ["ref.python"]  # a type in a signature is linked by its short name, which two modules may share
smartquotes = False  # `--set` stays two hyphens


def setup(app: object) -> None:
    """Write the pages of the reference before Sphinx looks for pages."""
    write_reference(FOLDER / "reference")
