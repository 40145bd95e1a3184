"""Formulas of docstrings in the form that the pages of the site have."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

INLINE = re.compile(r":math:`(.+?)`", flags=re.DOTALL)
BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +\S.*| *(?=\n\1 +\S)))*)", flags=re.MULTILINE)


class Formulas(griffe.Extension):
    """Roles and directives of mathematics become dollars."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = with_dollars(obj.docstring.value)


def with_dollars(text: str) -> str:
    """A docstring with Markdown's formulas."""

    def block(match: re.Match[str]) -> str:
        body = " ".join(textwrap.dedent(match[2]).split())
        return f"{match[1]}\n{match[1]}$$\n{match[1]}{body}\n{match[1]}$$\n"

    text = BLOCK.sub(block, text)
    return INLINE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
