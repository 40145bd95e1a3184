"""Configuration files that inherit from others.

A file may name its base files, relative to its own folder, from the lowest to the highest precedence:

    base: [base.yaml, mixed.yaml]

Trees are merged key by key; the inheriting file wins, and where a `class_path` changes, the `init_args` of the old
class are dropped. `$name` in a value becomes the folder and the stem of the requested file, such as `heat/tied_mixed`.
Class paths of the applications begin with ``tasks.`` whatever package they are installed as.
"""

import json
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from trivgeo._applications import importable, portable
from trivgeo.errors import ConfigurationError

CONFIGS = Path(__file__).parent / "configs"
"""The configurations that come with the library."""

BASE_KEY = "base"
"""Key of the list of files that a configuration builds on; name of the file that a folder shares."""
_CONFIG_OPTIONS = ("--config", "-c")
_LIKE = 0.75  # likeness of names from which one is suggested for the other
_SWEEP_KEY = "rows"  # only sweeps have it, see `tasks.sweep.Sweep`
_NOTHING = "{}\n"  # an empty file, written again
_KINDS = {list: "a list", str: "a text", bool: "a truth value"}
_MAX_SETTINGS = 100_000  # settings in one file, aliases written out


def find(name: str | Path) -> Path:
    """The file of a configuration: a path, or where there is no such file one that comes with the library.

    Args:
        name: a path; or `heat/tied` or `tasks/configs/heat/tied.yaml`, whatever the working folder.
    """
    ours = (CONFIGS.parents[1] / name, CONFIGS / f"{name}.yaml")
    return next((path for path in (Path(name), *ours) if os.path.isfile(path)), Path(name))


def read(path: str | Path) -> dict[str, Any]:
    """The configuration of a file, see `find`, merged with all that it inherits.

    Raises:
        ConfigurationError: a file is missing or no YAML, names a setting twice, inherits from itself, or its `base` is
            no list of files.
    """
    given, path = path, find(path)
    try:
        whole = _resolved(path)
        if not os.path.exists(whole):
            raise ConfigurationError(
                f"{given}: expected a configuration, the file does not exist{_neighbours(str(given))} "
                "(`trivgeo list` names ours)"
            )
        name = f"{whole.parent.name}/{path.stem}"
        return map_texts(_read(whole, (), {}), lambda text: portable(text.replace("$name", name)))
    except RecursionError as error:
        raise ConfigurationError(f"{path}: expected a configuration that is no part of itself") from error


def _neighbours(name: str) -> str:
    """A question after the names of configurations that are like one that is not there."""
    ours = [file.relative_to(CONFIGS).with_suffix("").as_posix() for file in CONFIGS.rglob("*.yaml")]
    like = get_close_matches(name, ours, n=2, cutoff=_LIKE)
    return f"; did you mean {' or '.join(like)}?" if like else ""


def load(path: Path) -> Any:
    """The content of a YAML file; `yaml.safe_load` would take the last of two values for one name without a word.

    Raises:
        ConfigurationError: it is no YAML, names something twice, or repeats parts of itself without measure.
    """
    try:
        return _parsed(path.read_text())
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", in line {mark.line + 1}"
        raise ConfigurationError(f"{path}: expected a configuration in YAML: {error.problem}{where}") from error
    except IsADirectoryError as error:
        raise ConfigurationError(f"{path}: expected a file in YAML, got a folder") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: expected a configuration in YAML, got a file that is no text") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: expected a configuration in YAML: {error}") from error


def _parsed(text: str) -> Any:
    """The content of a text in YAML.

    Raises:
        ConfigurationError: aliases stand for too much.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > _MAX_SETTINGS:
            raise ConfigurationError(
                f"configuration: expected at most {_MAX_SETTINGS} settings, got aliases of aliases that stand for more"
            )
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of values below a node, those behind an alias counted as often as they are named."""
    if id(node) not in known:
        known[id(node)] = 0  # a node that is part of itself is found where it is constructed
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [x for pair in parts for x in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.constructor.ConstructorError(
                None, None, f"expected every name once, got two {twice}", node.start_mark
            )
        return super().construct_mapping(node, deep)


def merge(below: Any, above: Any) -> Any:
    """One tree of settings over another."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if "class_path" in above and above["class_path"] != below.get("class_path"):
        return above
    return below | {key: merge(below[key], value) if key in below else value for key, value in above.items()}


def map_texts(tree: Any, function: Callable[[str], str]) -> Any:
    """A tree of settings with a function applied to every text in it that is no key."""
    if isinstance(tree, dict):
        return {key: map_texts(entry, function) for key, entry in tree.items()}
    if isinstance(tree, list):
        return [map_texts(entry, function) for entry in tree]
    return function(tree) if isinstance(tree, str) else tree


def resolved(arguments: Sequence[str]) -> list[str]:
    """Command line arguments as the parser takes them.

    Every configuration file is replaced by its whole configuration, and class paths of the applications by those under
    which this process imports them.
    """
    found: list[str] = []
    files: list[str] = []
    expects_file = has_settings = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        is_file = expects_file or (option in _CONFIG_OPTIONS and bool(equals))
        if is_file:
            files.append(argument if expects_file else value)
            text = _text(files[-1])
            has_settings |= text != _NOTHING
            found.append(text if expects_file else f"{option}={text}")
        elif option.startswith("-") and equals:
            found.append(f"{option}={_importable_value(value)}")
        else:
            found.append(_importable_value(argument))
        expects_file = not is_file and argument in _CONFIG_OPTIONS
    if files and not has_settings:
        raise ConfigurationError(f"{', '.join(files)}: expected a configuration with settings, got nothing")
    return found


def _text(file: str) -> str:
    return yaml.safe_dump(map_texts(read(file), importable), sort_keys=False)


def _importable_value(value: str) -> str:
    """The value of an option: a class path, or settings in YAML that hold some."""
    if not (value.startswith(("{", "[")) or ("&" in value and "*" in value)):
        return importable(value)
    try:
        tree = _parsed(value)
    except ConfigurationError:
        raise
    except (ValueError, RecursionError, yaml.YAMLError):
        return value  # the parser says what is wrong with it
    mapped = map_texts(tree, importable)
    return value if mapped == tree else json.dumps(mapped)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # symbolic links in a circle, or NUL in the path
        raise ConfigurationError(f"{str(path)!r}: expected the path of a configuration: {error}") from error


def _read(path: Path, above: tuple[Path, ...], known: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """The configuration of a file, merged with all that it inherits; each file is read once, and then `known`."""
    if path in known:
        return known[path]
    if path in above:
        raise ConfigurationError(f"{path}: expected files that do not lie on themselves")
    if not os.path.exists(path):
        raise ConfigurationError(
            f"{path}: expected a configuration, the file does not exist (`trivgeo list` names ours)"
        )
    document = load(path) or {}
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{path}: expected names with values, such as `trainer: ...`, got {_KINDS.get(type(document), 'a number')}"
        )
    if _SWEEP_KEY in document:
        raise ConfigurationError(
            f"{path}: expected a configuration of one run, got a sweep (`trivgeo sweep --config ...` runs it)"
        )
    files = document.pop(BASE_KEY, [])
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ConfigurationError(f"{path}: {BASE_KEY}: expected a list of files, got {files!r}")
    whole: dict[str, Any] = {}
    for file in files:
        whole = merge(whole, _read(_resolved(path.parent / file), (*above, path), known))
    known[path] = merge(whole, document)
    return known[path]
