"""Docstrings in the form that the pages of the site have: formulas between dollars, inherited members named."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

INLINE = re.compile(r":math:`(.+?)`", flags=re.DOTALL)
SHOWN = re.compile(r"^::: trivgeo\.(\S+)$", flags=re.MULTILINE)
WHOLE = re.compile(r"^::: trivgeo\.(\S+)\n    options:\n      inherited_members: true", flags=re.MULTILINE)
BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +\S.*| *(?=\n\1 +\S)))*)", flags=re.MULTILINE)


class Formulas(griffe.Extension):
    """Roles and directives of mathematics become dollars."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = with_dollars(obj.docstring.value)


class InheritedMembers(griffe.Extension):
    """Classes name the public members that they inherit, with a link to the description of each."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add a paragraph to the docstring of every class that inherits members."""
        if pkg.path != "trivgeo":
            return
        text = "\n".join(page.read_text() for page in Path(__file__).with_name("api").glob("*.md"))
        shown = {pkg[name].canonical_path: f"trivgeo.{name}" for name in SHOWN.findall(text)}
        whole = {f"trivgeo.{name}" for name in WHOLE.findall(text)}
        for kind in classes(pkg):
            if kind.docstring is not None and (said := inherited(kind, shown, whole)):
                kind.docstring.value += f"\n\n{said}"


def classes(parent: griffe.Module) -> Iterator[griffe.Class]:
    """The classes that the modules of a package define."""
    for member in parent.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes(member)


def inherited(kind: griffe.Class, shown: dict[str, str], whole: set[str]) -> str:
    """A paragraph with the public members that a class inherits, each by the first base whose description has it.

    Args:
        kind: the class.
        shown: the names under which pages describe objects, by their paths in the source.
        whole: the names of classes that are described with all that they inherit.
    """
    known = set(kind.members)
    if shown.get(kind.canonical_path) in whole:
        return ""
    parts = []
    for base in kind.mro():
        name = shown.get(base.canonical_path)
        if name is None:
            continue
        sources = [base, *(base.mro() if name in whole else ())]
        public = [(m, thing) for source in sources for m, thing in source.members.items() if not m.startswith("_")]
        members = dict.fromkeys(m for m, thing in public if m not in known and thing.has_docstring)
        known.update(members)
        if members:
            listed = ", ".join(f"[`{member}`][{name}.{member}]" for member in members)
            parts.append(f"**Inherited from [`{base.name}`][{name}]:** {listed}.")
    return "\n\n".join(parts)


def with_dollars(text: str) -> str:
    """A docstring with Markdown's formulas."""

    def block(match: re.Match[str]) -> str:
        body = " ".join(textwrap.dedent(match[2]).split())
        return f"{match[1]}\n{match[1]}$$\n{match[1]}{body}\n{match[1]}$$\n"

    text = BLOCK.sub(block, text)
    return INLINE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
