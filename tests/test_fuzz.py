"""Everything public, called with arguments that are wrong: typed errors or none."""

import pytest

from tests.fuzz import Finding, attack, targets


def listed(findings: list[Finding]) -> str:
    return "\n".join(f"{finding.target}: {finding.error}\n    {finding.arguments}" for finding in findings)


def test_a_sample() -> None:
    calls, findings = attack(300, seed=1)
    assert calls >= 300
    assert not findings, listed(findings)


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
