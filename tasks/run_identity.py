"""The identity of a test run: a hash of all that determines its numbers."""

import ast
import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from safetensors import SafetensorError, safe_open

import trivgeo
from trivgeo._applications import applications, importable, is_ours
from trivgeo.training import versions

from .files import checksum, files_read

_PRESENTATION_SETTINGS = {"figure", "progress", "export"}  # settings that change no number of a result


def identity(config: Mapping[str, Any]) -> str:
    """A hash of all that determines the numbers of a run: rows of two runs are exchangeable if and only if it is equal.

    It covers the settings of model and data but for names of pictures, bars and exports, the seed, the precision, the
    content of every file read (see `tasks.files.checksum`) with the settings that name it, the versions, and the source
    of this library and of the user's own modules that the settings and checkpoints name and that these import, if they
    are not installed; nothing else, so that neither the folder nor the kind of output matters.

    Args:
        config: configuration of the test, as the command line has it.
    """
    trainer = config.get("trainer") or {}
    parts = {
        "settings": _numeric({name: config.get(name) for name in ("model", "data", "seed_everything")}),
        "precision": [trainer.get("precision"), trainer.get("plugins"), _parts(trainer.get("strategy"))],
        "files": _contents(config),
        "versions": versions(),
        "source": source(_named(config)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def source(names: Iterable[str] = ()) -> list[str]:
    """Hashes of the source of this library, and of the modules of the user at these dotted names.

    A package counts as a whole, for a class may call any of its modules. Packages that its modules import count, too,
    unless they are installed.
    """
    asked, seen, found = set(names), set[str](), dict[str, str]()
    while asked:
        name = importable(asked.pop())
        package = name.split(".")[0]
        if is_ours(name) or package in seen or package not in sys.modules:
            continue
        seen.add(package)  # an installed package is imported hundreds of times, and may have thousands of files
        module = sys.modules[package]
        files = [] if any(map(is_installed, _places(module))) else _files_of(module)
        if files:
            found[package] = _digest(files)
            asked |= {name for file in files for name in _imported(file)}
    return [_source(), *(found[package] for package in sorted(found))]


def _imported(file: Path) -> list[str]:
    """Modules that a file imports, but for those of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except SyntaxError:  # a file that Python cannot read was not imported
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parents = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    return names + [node.module for node in parents if node.module]


def _parts(strategy: Any) -> Any:
    """Arguments of a strategy, such as its own precision; the number of devices does not change the numbers."""
    return strategy if isinstance(strategy, Mapping) else None


def _numeric(settings: Any, ours: bool = True) -> Any:
    """Settings without those of our classes that change no number."""
    if isinstance(settings, Mapping):
        path = settings.get("class_path")
        ours = is_ours(path) if isinstance(path, str) else ours
        kept = {name: value for name, value in settings.items() if not (ours and name in _PRESENTATION_SETTINGS)}
        return {name: _numeric(value, ours) for name, value in kept.items()}
    return [_numeric(value, ours) for value in settings] if isinstance(settings, list) else settings


def _contents(config: Mapping[str, Any]) -> list[tuple[list[str], str]]:
    """The checksum of every file read, with the settings that name it, so that two files cannot change places."""
    settings = {part: _numeric(config.get(part)) for part in ("model", "data")}
    named = list(_strings(settings))
    contents = [(_roles(Path(path), named), content) for path, content in files_read().items()]
    return sorted(contents + [(["ckpt_path"], content) for content in _weights(config.get("ckpt_path"))])


def _roles(path: Path, named: Sequence[tuple[str, PurePath]]) -> list[str]:
    """Settings that name a file or a folder of it; where none does, the file's own name, for folders may move."""
    roles = []
    for setting, place in named:
        # a network may be called by the end of its path, without the suffix
        if place.parts in (whole.parts[-len(place.parts) :] for whole in (path, path.with_suffix(""))):
            roles.append(setting)
        elif path.is_relative_to(place):
            roles.append(f"{setting}/{path.relative_to(place).as_posix()}")
    return sorted(roles) or [path.name]


def _strings(settings: Any, name: str = "") -> Iterator[tuple[str, PurePath]]:
    """All settings that could be paths, with their dotted names."""
    if isinstance(settings, Mapping | list):
        entries = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
        for key, value in entries:
            yield from _strings(value, f"{name}.{key}".removeprefix("."))
    elif isinstance(settings, str) and settings:
        yield name, PurePath(settings)


def _weights(path: str | None) -> list[str]:
    return [checksum(path)] if path and os.path.isfile(path) else []


@cache
def _source() -> str:
    """A hash of the source, the same in a checkout and installed: numbers may change between two versions."""
    applied = _files_of(sys.modules[applications()])
    library = [path for path in _files_of(trivgeo) if path not in applied]
    return _digest(library + applied)


def _named(config: Mapping[str, Any]) -> list[str]:
    """Dotted names in settings, and in the headers of networks that were read, and modules imported for them."""
    named = [str(name) for part in ("model", "data") for _, name in _strings(_numeric(config.get(part)))]
    for path in files_read():
        if path.endswith(".safetensors"):
            # the file may be gone, or not a network
            with suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
                named += re.findall(r"[\w.]+", str(file.metadata()))
    return [name for name in named if "." in name] + list(config.get("imports") or ())


def is_installed(file: Path) -> bool:
    """Whether a file came by an installer: into this environment, that of the user or that of the system."""
    folders = (Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or any(map(file.is_relative_to, folders))


def _places(module: ModuleType) -> list[Path]:
    """The folders of a package, or the file of a module; nothing for a module that is built in."""
    file = getattr(module, "__file__", None)
    return [Path(folder) for folder in getattr(module, "__path__", ())] or ([] if file is None else [Path(file)])


def _files_of(module: ModuleType) -> list[Path]:
    """The source of a module, or of all modules of a package."""
    places = _places(module)
    # editors leave links to nothing
    found = (path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place]))
    return [path for path in found if path.is_file()]


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
