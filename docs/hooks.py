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
    """One formula as MathML, which browsers draw themselves."""
    kind = "block" if match[1] == "div" else "inline"
    return f'<{match[1]} class="arithmatex">{convert(html.unescape(match[2]), display=kind)}</{match[1]}>'


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
