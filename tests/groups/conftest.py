"""Fixtures of the group cases: a test that takes `case` is a law, and runs on every one of them."""

import pytest

from tests.groups.cases import CASES, GroupCase, marked
from trivgeo.groups import LieGroup


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the laws that a case leaves to the long run (`GroupCase.slow_laws`)."""
    for item in items:
        if isinstance(item, pytest.Function) and any(law in laws_of(item) for law in slow_laws_of(item)):
            item.add_marker(pytest.mark.slow)


def slow_laws_of(item: pytest.Function) -> tuple[str, ...]:
    """What the case of a test leaves to the long run."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value.slow_laws for value in values if isinstance(value, GroupCase)), ())


def laws_of(item: pytest.Function) -> set[str]:
    """The names that `GroupCase.slow_laws` may give a test: its function, alone or with its other parameters."""
    name, parameters = item.originalname, item.callspec.id
    case = next(value.name for value in item.callspec.params.values() if isinstance(value, GroupCase))
    others = parameters.removeprefix(case).removesuffix(case).strip("-")
    return {name, f"{name}[{others}]"}


@pytest.fixture(params=marked(CASES))
def case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.fixture
def group(case: GroupCase) -> LieGroup:
    return case.group


@pytest.fixture(params=marked([c for c in CASES if c.matrix is not None]))
def matrix_case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.fixture(params=marked([c for c in CASES if c.has_action]))
def action_case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param
