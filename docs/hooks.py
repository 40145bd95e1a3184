"""What the site does to its pages: runs their code, shows scripts as pages, turns formulas into MathML."""

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
NOTHING = re.compile(r'<div class="highlight"><pre><span></span><code>\s*</code></pre></div>\n?')
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
    """Formulas need no JavaScript and no network; a block that prints nothing has no output below it."""
    return FORMULA.sub(formula, NOTHING.sub("", content))


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
