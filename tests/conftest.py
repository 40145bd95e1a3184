"""Fixtures. Randomness goes through explicit generators; nothing touches torch's global seed or dtype."""

import pytest
import torch

from tests.groups.cases import CASES, GroupCase, marked
from tests.helpers import seeded
from tests.long_run import is_long
from trivgeo.groups import LieGroup


def pytest_configure(config: pytest.Config) -> None:
    # torch 2.13 warns of itself on the first forward-mode derivative and the first compilation of a process
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning:torch"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_long(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def generator() -> torch.Generator:
    return seeded(0)


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
