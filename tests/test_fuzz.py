"""Everything public, called with arguments that are wrong: typed errors or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tests.fuzz import Finding, attack, targets
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError


def listed(findings: list[Finding]) -> str:
    return "\n".join(f"{finding.target}: {finding.error}\n    {finding.arguments}" for finding in findings)


def test_a_sample() -> None:
    calls, findings = attack(300, seed=1)
    assert calls >= 300
    assert not findings, listed(findings)


class Pairs:
    """Keeps pairs of different things."""

    @checked
    def __init__(self, pairs: Sequence[tuple[Tensor, slice]], bounds: tuple[float, float] = (0.0, 1.0)) -> None:
        self.pairs, self.bounds = pairs, bounds


def test_parts_of_tuples() -> None:
    """Each has its own type; their number counts; a list is as good."""
    assert len(Pairs([(torch.zeros(2), slice(2)), (torch.ones(1), slice(1))], [1, 2.0]).pairs) == 2  # type: ignore[arg-type]
    for wrong in [(torch.zeros(2), torch.zeros(2))], [(torch.zeros(2),)], [(slice(2), torch.zeros(2))]:
        with pytest.raises(ConfigurationError, match="pairs"):
            Pairs(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="bounds"):
        Pairs([], (0.0, 1.0, 2.0))  # type: ignore[arg-type]


@checked(but=("free",))
class Walk:
    """Of a class the constructor and the public methods are checked, but those that are named."""

    def __init__(self, size: float) -> None:
        self.size, self.origin = size, torch.zeros(2)

    def step(self, v: Float[Tensor, " n"]) -> Tensor:
        return v.mul(self.size)

    def free(self, v: Float[Tensor, " n"]) -> Tensor:
        return v.mul(self.size)

    @classmethod
    def of(cls, sizes: Sequence[float]) -> Walk:
        return cls(sum(sizes))


def test_a_class() -> None:
    walk = Walk.of([1.0, 2])
    assert walk.step([1.0, 2.0]).tolist() == [3.0, 6.0]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="size: expected float"):
        Walk("long")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="sizes: expected"):
        Walk.of(3.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="v: expected float tensor"):
        walk.step("far")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        walk.free("far")  # type: ignore[arg-type]
    with torch.device("meta"):
        assert Walk(1.0).origin.device.type == "cpu"
    with pytest.raises(ConfigurationError, match="target: expected a function or a class"):
        checked(3)  # type: ignore[type-var]


@checked
def moved(points: Float[Tensor, "*batch n n"], v: Float[Tensor, "*batch n"], number: Integer[Tensor, ""]) -> Tensor:
    """Fails for all arguments."""
    raise ValueError("no")


def test_shapes_of_two_arguments() -> None:
    """Sizes that share a name agree, within an argument and between arguments; floats are no integers."""
    n = torch.tensor(1)
    with pytest.raises(ValueError, match=r"^no$"):
        moved(torch.zeros(4, 2, 2), torch.zeros(4, 2), number=n)
    for points, v in [((4, 2, 3), (4, 2)), ((4, 2, 2), (4, 3)), ((4, 2, 2), (5, 2)), ((2,), (2,))]:
        with pytest.raises(ShapeError, match=r"expected float tensor \[\*batch n"):
            moved(torch.zeros(points), torch.zeros(v), number=n)
    with pytest.raises(ShapeError, match=r"v: .*got \[4, 3\] beside points \[4, 2, 2\]"):
        moved(torch.zeros(4, 2, 2), torch.zeros(4, 3), number=n)
    with pytest.raises(ConfigurationError, match="number: expected integer tensor"):
        moved(torch.zeros(4, 2, 2), torch.zeros(4, 2), number=torch.tensor(1.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_ten_thousand_calls(seed: int) -> None:
    calls, findings = attack(10_000, seed)
    assert calls >= 10_000
    assert not findings, listed(findings)


def test_everything_is_reached() -> None:
    """The attack finds what is exported, in every package."""
    names = {target.name for target in targets()}
    assert len(names) > 180
    assert {"groups.SO", "sde.solve", "inversion.TIED", "actions.ImageWarp", "geoopt.GroupManifold"} <= names
