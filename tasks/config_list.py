"""The configurations that come with the library: what each is for, in one line."""

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import shorten
from typing import Any

from trivgeo._text import OneLineParser
from trivgeo.errors import ConfigurationError

from .config_inheritance import BASE_KEY, CONFIGS, load, read

_NAME_WIDTH, _KIND_WIDTH, _LINE_WIDTH = 40, 7, 130  # characters


def names() -> list[str]:
    """The names of all configurations that come with the library and that a command can be given."""
    files = (path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml"))
    return sorted(file.as_posix() for file in files if file.name != BASE_KEY and file.parent.name)


def kind_of(name: str) -> str:
    """The command for a configuration: `test`, `fit` or `sweep`; `with` for settings that are laid over another."""
    path = CONFIGS / f"{name}.yaml"
    if "rows" in load(path):
        return "sweep"
    config: dict[str, Any] = read(path)
    if not all("class_path" in (config.get(part) or {}) for part in ("model", "data")):
        return "with"
    return "test" if "verbose" in config else "fit"


def sentences(path: Path) -> list[str]:
    """The sentences, and parts before colons, of the comment that a file begins with, without its commands."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("#  "):
            lines.append(line.removeprefix("#").strip())
    return re.split(r"(?<=[.:]) +", " ".join(lines))


def listing(words: Sequence[str] = ()) -> str:
    """The configurations whose names hold one of the words, by folders, with their commands and what each is for.

    Args:
        words: parts of names, in lower case; none for all configurations.

    Raises:
        ConfigurationError: no name holds a word.
    """
    for word in words:
        if not any(word in name for name in names()):
            folders = sorted({name.split("/")[0] for name in names()})
            raise ConfigurationError(f"list: expected a part of a name, such as {', '.join(folders)}, got {word!r}")
    found = [name for name in names() if not words or any(word in name for word in words)]
    lines = []
    for folder, members in groupby(found, key=lambda name: name.split("/")[0]):
        base = CONFIGS / folder / f"{BASE_KEY}.yaml"
        shared = sentences(base) if base.exists() else []
        lines += ["", f"{folder}: {' '.join(shared[:2])}".rstrip(".: ")]
        for name in members:
            own, known = sentences(CONFIGS / f"{name}.yaml"), {sentence.rstrip(".:") for sentence in shared}
            said = " ".join(sentence for sentence in own if sentence.rstrip(".:") not in known) or " ".join(own)
            start = f"  {name:<{_NAME_WIDTH}} {kind_of(name):<{_KIND_WIDTH}}"
            lines.append(start + shorten(said.rstrip(".:"), _LINE_WIDTH - len(start), placeholder=" ..."))
    return "\n".join(lines).strip()


def main(arguments: Sequence[str]) -> None:
    """Print configurations, each with the command for it and what it is for.

    Args:
        arguments: the command line after `list`.

    Raises:
        ConfigurationError: no name holds a word.
    """
    parser = OneLineParser(prog="trivgeo list", description="The configurations that come with the library.")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only names with this part, such as heat; default: all"
    )
    options = parser.parse_args(arguments)
    sys.stdout.write(
        f"{listing(options.words)}\n\ntrivgeo COMMAND --config NAME; `with`: a second --config, after another\n"
    )
