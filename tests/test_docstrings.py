"""Docstrings of public objects: they begin with a verb or a noun, and each says what goes in and what is raised."""

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import trivgeo

# pronouns and the like, which leave a reader to guess of what is spoken
PRONOUNS = re.compile(
    r"(It|They|This|That|Those|These|Its|What|Whatever|Which|How|Whether|Where|Who|One|Each|There|See|As|Like|Same)\b"
)
FRAMEWORK = {"self", "cls", "args", "kwargs", "trainer", "pl_module", "batch_idx"}  # described by Python and Lightning
Public = tuple[str, Any, Any]


def public() -> Iterator[Public]:
    """Classes and functions that packages and modules export, once each, and public methods of their own."""
    seen: set[int] = set()  # objects of several packages
    for found in pkgutil.walk_packages(trivgeo.__path__, "trivgeo."):
        name = found.name
        if re.search(r"\._|^trivgeo\.(tasks|groups\.linalg)|__main__", name):
            continue
        module = importlib.import_module(name)
        for export in getattr(module, "__all__", ()):  # other modules are for the library
            thing = getattr(module, export)
            home = getattr(thing, "__module__", None) or ""
            if (
                id(thing) in seen
                or not home.startswith("trivgeo")
                or not (inspect.isclass(thing) or inspect.isfunction(thing))
            ):
                continue
            seen.add(id(thing))
            yield f"{home}.{export}", thing, None
            for key, member in vars(thing).items() if inspect.isclass(thing) else ():
                method = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                # torch puts a step that is inherited into the class of an optimizer when the first one is made
                function = inspect.unwrap(method) if inspect.isfunction(method) else getattr(method, "fget", None)
                if not key.startswith("_") and getattr(function, "__module__", "").startswith("trivgeo"):
                    yield f"{home}.{export}.{key}", method, thing


def texts(thing: Any, owner: Any) -> str:
    """The docstring of an object with those that it inherits, where a contract is described once."""
    own = thing.__doc__ or ""
    if inspect.isclass(thing):
        bases = [base.__doc__ for base in thing.__mro__[1:] if base.__module__.startswith("trivgeo")]
    else:
        name = getattr(thing, "fget", thing).__name__
        bases = [vars(base)[name].__doc__ for base in owner.__mro__[1:] if name in vars(base)] if owner else []
    return "\n".join([own, *(text or "" for text in bases)])


def undescribed(thing: Any, text: str) -> list[str]:
    """The parameters that a docstring does not name."""
    if inspect.isclass(thing) and issubclass(thing, (Exception, dict)):  # whose signatures are Python's
        return []
    names = [p for p in inspect.signature(thing).parameters if p not in FRAMEWORK and not p.startswith("_")]
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]


def raises(thing: Any) -> bool:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))
    return bool(re.search(r"^\s+raise ", source, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def objects() -> list[Public]:
    return list(public())


def test_begin_with_a_verb_or_a_noun(objects: list[Public]) -> None:
    assert len(objects) > 800
    assert [name for name, thing, _ in objects if PRONOUNS.match((thing.__doc__ or "").strip())] == []


def test_every_public_object_has_one(objects: list[Public]) -> None:
    assert [name for name, thing, owner in objects if not texts(thing, owner).strip()] == []


def test_name_every_parameter(objects: list[Public]) -> None:
    missing = {
        name: names
        for name, thing, owner in objects
        if not isinstance(thing, property) and (names := undescribed(thing, texts(thing, owner)))
    }
    assert missing == {}


def test_say_what_is_raised(objects: list[Public]) -> None:
    silent = [
        name
        for name, thing, owner in objects
        if inspect.isfunction(thing) and raises(thing) and "aise" not in texts(thing, owner)
    ]
    assert silent == []


def test_a_fault_is_found() -> None:
    def faulty(x: float, factor: float) -> float:
        """What x is, times something."""
        if x < 0:
            raise ValueError(x)
        return factor * x

    assert PRONOUNS.match(faulty.__doc__ or "")
    assert undescribed(faulty, texts(faulty, None)) == ["factor"]
    assert raises(faulty)
