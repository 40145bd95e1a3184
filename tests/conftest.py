"""Fixtures. Randomness goes through explicit generators; nothing touches torch's global seed or dtype."""

import pytest
import torch

from tests.groups.cases import CASES, GroupCase
from tests.helpers import seeded
from trivgeo.groups import LieGroup


def pytest_configure(config: pytest.Config) -> None:
    # torch 2.13 warns of itself on the first forward-mode derivative and the first compilation of a process
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning:torch"
    )


@pytest.fixture
def generator() -> torch.Generator:
    return seeded(0)


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.fixture
def group(case: GroupCase) -> LieGroup:
    return case.group


@pytest.fixture(params=[c for c in CASES if c.matrix is not None], ids=str)
def matrix_case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.fixture(params=[c for c in CASES if c.has_action], ids=str)
def action_case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param
