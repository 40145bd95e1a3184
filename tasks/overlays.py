"""Configuration files that lie on others.

A file may name those that it lies on, relative to its own folder, from the lowest to the highest:

    base: [base.yaml, mixed.yaml]

Trees are merged key by key; what stands above wins, and where a `class_path` changes, the `init_args` of the old class
go with it. `$name` in a value becomes the folder and the stem of the file that was asked for, such as
`heat/tied_mixed`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trivgeo.errors import ConfigurationError

CONFIGS = Path(__file__).parent / "configs"
"""The configurations that come with the library."""

_BASE = "base"
_OPTIONS = ("--config", "-c")


def find(name: str | Path) -> Path:
    """The file of a configuration: a path, or where there is no such file one of ours.

    Args:
        name: a path, or `heat/tied` or `tasks/configs/heat/tied.yaml` for a file of ours, whatever the folder.
    """
    ours = (CONFIGS.parents[1] / name, CONFIGS / f"{name}.yaml")
    return next((path for path in (Path(name), *ours) if os.path.isfile(path)), Path(name))


def names() -> list[str]:
    """The names of all configurations of ours that a command can be given."""
    files = (path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml"))
    return sorted(file.as_posix() for file in files if file.name != _BASE and file.parent.name)


def read(path: str | Path) -> dict[str, Any]:
    """The whole configuration of a file, or of one of ours, see `find`.

    Raises:
        ConfigurationError: a file is missing or no YAML, names a setting twice, lies on itself, or its `base` is no
            list of files.
    """
    path = find(path)
    try:
        whole = _resolved(path)
        return _named(_read(whole, ()), f"{whole.parent.name}/{path.stem}")
    except RecursionError as error:
        raise ConfigurationError(f"{path}: expected a configuration that is no part of itself") from error


def load(path: Path) -> Any:
    """What a YAML file says; `yaml.safe_load` would take the last of two values for one name without a word.

    Raises:
        ConfigurationError: it is no YAML, or names something twice.
    """
    try:
        return yaml.load(path.read_text(), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: expected a configuration in YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.constructor.ConstructorError(
                None, None, f"expected every name once, got two {twice}", node.start_mark
            )
        return super().construct_mapping(node, deep)


def merge(below: Any, above: Any) -> Any:
    """One tree laid on another."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if "class_path" in above and above["class_path"] != below.get("class_path"):
        return above
    return below | {key: merge(below[key], value) if key in below else value for key, value in above.items()}


def resolved(arguments: Sequence[str]) -> list[str]:
    """Command line arguments in which every configuration file is replaced by its whole configuration."""
    found: list[str] = []
    expects_file = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if expects_file:
            found.append(_text(argument))
        elif option in _OPTIONS and equals:
            found.append(f"{option}={_text(value)}")
        else:
            found.append(argument)
        expects_file = argument in _OPTIONS
    return found


def _text(file: str) -> str:
    return yaml.safe_dump(read(file), sort_keys=False)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, NUL
        raise ConfigurationError(f"{str(path)!r}: expected the path of a configuration: {error}") from error


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path in above:
        raise ConfigurationError(f"{path}: expected files that do not lie on themselves")
    if not os.path.exists(path):
        raise ConfigurationError(f"{path}: expected a configuration, the file does not exist (`list` names ours)")
    document = load(path) or {}
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: expected a configuration in YAML, got {type(document).__name__}")
    files = document.pop(_BASE, [])
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ConfigurationError(f"{path}: {_BASE}: expected a list of files, got {files!r}")
    whole: dict[str, Any] = {}
    for file in files:
        whole = merge(whole, _read(_resolved(path.parent / file), (*above, path)))
    return merge(whole, document)


def _named(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _named(entry, name) for key, entry in value.items()}
    if isinstance(value, list):
        return [_named(entry, name) for entry in value]
    return value.replace("$name", name) if isinstance(value, str) else value
