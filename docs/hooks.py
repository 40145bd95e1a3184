"""What the site does to its pages: code is run, scripts are pages, formulas are MathML, pictures are links."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n", flags=re.MULTILINE)
SCRIPT = re.compile(r"^<!-- script: (\S+) -->$", flags=re.MULTILINE)
PRINTED = re.compile(
    r'<div class="language-text highlight">(<pre><span></span><code>)(.*?)(</code></pre></div>\n?)', flags=re.DOTALL
)
COLUMNS = re.compile(r"\S {2,}\S.*\n.*\S {2,}\S")  # two lines of a printed table
PICTURE = re.compile(r'(?<!">)<img [^>]*?src="([^"]+)"[^>]*>')
COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)|[{}_^&\s]")  # of LaTeX, with what else takes no width
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_pre_build(**_: Any) -> None:
    """Scripts read the command line that is theirs: an empty one."""
    sys.argv = sys.argv[:1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Scripts become pages; every block of Python is run, and what it prints is shown below it."""
    markdown = SCRIPT.sub(lambda match: page_of((ROOT / match[1]).read_text()), markdown)
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


def page_of(script: str) -> str:
    """A script in percent format as Markdown, without what only its command line needs."""
    if "# %%" not in script:  # text and code in one piece: the docstring, and the rest
        _, text, body = script.split('"""', 2)
        return f"# {text.partition(',')[0].rstrip('.')}\n\n{text}\n\n```python\n{body.strip()}\n```\n"
    cells = re.split(r"^# %%", script.split('\nif __name__ == "__main__":')[0], flags=re.MULTILINE)[1:]
    parts = []
    for cell in cells:
        kind, _, body = cell.partition("\n")
        if "markdown" in kind:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n")))
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```\n")
    return "\n\n".join(parts)
