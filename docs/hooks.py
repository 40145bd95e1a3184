"""What the site does to its pages: code is run, scripts are pages and notebooks, formulas MathML, pictures links."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
COMMAND_LINE = '\nif __name__ == "__main__":'
BLOCK = re.compile(r"^```python\n", flags=re.MULTILINE)
SCRIPT = re.compile(r"^<!-- script: (\S+) -->$", flags=re.MULTILINE)
PRINTED = re.compile(
    r'<div class="language-text highlight">(<pre><span></span><code>)(.*?)(</code></pre></div>\n?)', flags=re.DOTALL
)
COLUMNS = re.compile(r"\S {2,}\S.*\n.*\S {2,}\S")  # two lines of a printed table
PICTURE = re.compile(r'(?<!">)<img [^>]*?src="([^"]+)"[^>]*>')
COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)|[{}_^&\s]")  # of LaTeX, with what else takes no width
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_config(config: Any) -> Any:
    """The version and the repository are those of the package; `mike deploy` adds a choice of versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.copyright = f"{project['name']} {project['version']}, {project['license'].partition(' ')[0]}"
    config.repo_url = config.repo_url or project.get("urls", {}).get("Repository")
    config.extra["release"] = project["version"]
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_post_page(output: str, config: Any, **_: Any) -> str:
    """The version stands beside the name."""
    name = re.escape(config.site_name)
    version = config.extra["release"]
    return re.sub(
        rf'(<span class="md-ellipsis">\s*{name})(\s*</span>)', rf"\1 <small>{version}</small>\2", output, count=1
    )


def on_pre_build(**_: Any) -> None:
    """Scripts read the command line that is theirs: an empty one."""
    sys.argv = sys.argv[:1]


def on_files(files: Any, config: Any) -> Any:
    """Each script of the tutorials is a notebook, too."""
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        content = notebook_of(script.read_text(), script.stem)
        files.append(File.generated(config, f"tutorials/{script.stem}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Scripts become pages; every block of Python is run, and what it prints is shown below it."""
    markdown = SCRIPT.sub(
        lambda match: page_of((ROOT / match[1]).read_text(), f"{Path(match[1]).stem}.ipynb"), markdown
    )
    if os.environ.get("TRIVGEO_DOCS") == "draft":  # in seconds, without what blocks print
        return markdown
    options = f'exec="on" source="above" result="text" session="{page.file.src_uri}"'
    return BLOCK.sub(f"```python {options}\n", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas need no JavaScript and no network; printed text is wrapped; a picture opens alone, to be enlarged."""
    linked = PICTURE.sub(lambda match: f'<a href="{match[1]}">{match[0]}</a>', content)
    return FORMULA.sub(formula, PRINTED.sub(printed, linked))


def printed(match: re.Match[str]) -> str:
    """What a block printed: nothing at all, a table that keeps its columns, or text that goes on below."""
    start, text, end = match.groups()
    if not text.strip():
        return ""
    kind = "table" if COLUMNS.search(html.unescape(text)) else "text"
    return f'<div class="language-{kind} highlight">{start}{text}{end}'


def formula(match: re.Match[str]) -> str:
    """One formula as MathML, which browsers draw themselves; a long one in several lines."""
    kind, text = ("block" if match[1] == "div" else "inline"), html.unescape(match[2])
    shown = "".join(convert(line, display=kind) for line in (lines_of(text) if kind == "block" else [text]))
    return f'<{match[1]} class="arithmatex">{shown}</{match[1]}>'


def lines_of(text: str, symbols: int = 55) -> list[str]:
    r"""A displayed formula, broken where it has a ``\quad`` into lines that a page of 1,280 pixels shows whole.

    Args:
        text: LaTeX.
        symbols: the length of a line.
    """
    lines: list[str] = []
    for part in re.split(r"\\q?quad\b", text):
        if lines and len(COMMAND.sub("", lines[-1] + part)) < symbols:
            lines[-1] += rf" \quad {part.strip()}"
        else:
            lines.append(part.strip())
    return [text] if any(line.count("{") != line.count("}") or "\\begin" in line for line in lines) else lines


def cells_of(script: str) -> list[tuple[str, str]]:
    """The cells of a script, ("markdown", text) and ("code", text), without what only its command line needs."""
    if "# %%" not in script:  # text and code in one piece: the docstring, and the rest
        _, text, body = script.split('"""', 2)
        return [("markdown", f"# {text.partition(',')[0].rstrip('.')}\n\n{text}"), ("code", body.strip())]
    cells = []
    for cell in re.split(r"^# %%", script.split(COMMAND_LINE)[0], flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if "markdown" in kind:
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n"))
            cells.append(("markdown", body))
        elif body.strip():
            cells.append(("code", body.strip()))
    return cells


def page_of(script: str, notebook: str) -> str:
    """A script in percent format as Markdown, with a link to its notebook below the title."""
    parts = [f"```python\n{text}\n```\n" if kind == "code" else text for kind, text in cells_of(script)]
    title, _, rest = parts[0].lstrip().partition("\n")
    return "\n\n".join([title, f"[Download as a notebook]({notebook})", rest, *parts[1:]])


def notebook_of(script: str, name: str) -> str:
    """A script in percent format as a Jupyter notebook, which ends with the figure of the script."""
    cells = cells_of(script)
    if "def draw(path: Path)" in script:
        shown = f'from IPython.display import Image\n\ndraw(Path("{name}.png"))\nImage("{name}.png")'
        cells.append(("code", shown))
    return json.dumps(
        {
            "cells": [
                {"cell_type": kind, "id": f"{name}-{place}", "metadata": {}, "source": text.strip("\n")}
                | ({"execution_count": None, "outputs": []} if kind == "code" else {})
                for place, (kind, text) in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        ensure_ascii=False,
        indent=1,
    )
