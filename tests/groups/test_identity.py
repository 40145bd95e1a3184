"""What makes two groups the same: fingerprints, and what becomes of a group in a file."""

import copy
import json
import pickle

import pytest
import torch
from torch import Tensor

from tests.groups.cases import CASES, GroupCase
from tests.helpers import randn, random_vectors
from trivgeo.errors import ConfigurationError
from trivgeo.groups import (
    SL,
    SO,
    BurgersSymmetry,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    LieGroup,
    MatrixGroup,
    Translation,
    from_generators,
)
from trivgeo.inversion import LieLAC, TestTimeEquivariant


def turned() -> Tensor:
    """The basis of so(3) with the axes x and y exchanged: other constants, the same elements."""
    return SO(3).hat(torch.eye(3, dtype=torch.float64))[[1, 0, 2]]


class TestFingerprint:
    def test_every_group_is_itself_and_no_other(self) -> None:
        prints = [case.make().fingerprint() for case in CASES]
        for i, case in enumerate(CASES):
            matching = [j for j, fingerprint in enumerate(prints) if case.group.matches(fingerprint)]
            assert matching == [i], [CASES[j].name for j in matching]

    def test_scale_is_no_part_of_it(self, case: GroupCase) -> None:
        scale = [0.2 + 0.3 * i for i in range(case.group.dim)]
        for other in (case.make(scale=scale), case.group.with_scale(0.5)):
            assert other.is_same_group(case.group)
            assert case.group.is_same_group(other)
            assert other.fingerprint() == case.group.fingerprint()

    def test_in_a_file(self, group: LieGroup) -> None:
        read = json.loads(json.dumps(group.fingerprint()))
        components = set() if group.num_components == 1 else {"components"}
        assert set(read) == {"dim", "element_shape", "exp", "products", "periods"} | components
        assert len(read["exp"]) == group.dim + 3
        assert group.matches(read)
        read["exp"][0][0] += 1e-3
        assert not group.matches(read)

    def test_whatever_the_default_dtype(self) -> None:
        expected = HeatSymmetry(0.01).fingerprint()
        for dtype in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            try:
                assert HeatSymmetry(0.01).fingerprint() == expected
            finally:
                torch.set_default_dtype(torch.float32)

    def test_callers_cannot_change_it(self) -> None:
        group = SL(2)
        group.fingerprint()["exp"][0][0] = 7.0
        group.algebra.trace_ad_like(torch.zeros(1, dtype=torch.float64)).fill_(7.0)
        assert group.algebra.trace_ad.tolist() == [0.0] * group.dim
        assert group.matches(SL(2).fingerprint())

    def test_other_groups(self) -> None:
        assert not HeatSymmetry(0.1).is_same_group(HeatSymmetry(0.2))
        assert not HeatSymmetry(0.1).is_same_group(BurgersSymmetry())
        assert not Translation(3).is_same_group(Heisenberg(1))  # exp is the identity map in both
        assert not Heisenberg(1, 1.0).is_same_group(Heisenberg(1, 1.1))
        assert not SO(3).is_same_group(MatrixGroup(turned()))
        assert SO(3).is_same_group(MatrixGroup(turned()[[1, 0, 2]]))  # another class, the same elements
        assert not GLPlus(2).is_same_group(SL(2))

    def test_nan_is_like_nan_at_its_place_only(self) -> None:
        group = SL(2)
        good, bad = group.fingerprint(), group.fingerprint()
        bad["exp"][1][2] = float("nan")
        assert not group.matches(bad)
        for value in (float("inf"), 1e300):
            bad["exp"][1][2] = value
            assert not group.matches(bad)
        assert group.matches(good)

    def test_incomplete(self) -> None:
        with pytest.raises(ConfigurationError, match="got none of exp, products"):
            SL(2).matches({"dim": 3, "element_shape": [2, 2]})


def planar(transpose: bool) -> LieGroup:
    """sl(2) by its matrices on vectors, or by minus their transposes on covectors: equal brackets."""
    basis = SL(2).hat(torch.eye(3, dtype=torch.float64))
    return from_generators([lambda p, m=m: p @ (-m if transpose else m.mT) for m in basis], variables=2)


class TestVectorsAndCovectors:
    """Equal brackets, other elements: a network that is equivariant for one of the groups is not for the other."""

    def test_brackets_are_not_enough(self) -> None:
        vectors, covectors = planar(False), planar(True)
        c = vectors.algebra.structure_constants
        torch.testing.assert_close(covectors.algebra.structure_constants, c)
        assert vectors.element_shape == covectors.element_shape
        v, p, q = torch.tensor([0.4, 0.9, -0.3]).double(), randn(1, 2), randn(1, 2, seed=1)
        pairing = (p * q).sum()
        good = (vectors.action()(vectors.exp(v), p) * covectors.action()(covectors.exp(v), q)).sum()
        bad = (vectors.action()(vectors.exp(v), p) * covectors.action()(vectors.exp(v), q)).sum()
        assert abs(float(good - pairing)) < 1e-12
        assert abs(float(bad - pairing)) > 0.1
        assert not vectors.is_same_group(covectors)
        assert not covectors.is_same_group(vectors)

    def test_the_pair_is_refused_where_it_matters(self) -> None:
        vectors, covectors = planar(False), planar(True)
        inverter = LieLAC(vectors.action(), lambda x: x.square().sum((-2, -1)))
        TestTimeEquivariant(lambda x: x, inverter, vectors.action())
        with pytest.raises(ConfigurationError, match="output_action"):
            TestTimeEquivariant(lambda x: x, inverter, covectors.action())

    def test_the_same_generators(self) -> None:
        assert planar(False).is_same_group(planar(False))
        assert planar(True).with_scale(0.3).is_same_group(planar(True))

    def test_one_representation_for_both(self) -> None:
        """With the same matrices for both, elements mean the same, and the pair is one."""
        basis = SL(2).hat(torch.eye(3, dtype=torch.float64))
        groups = [
            from_generators(
                [lambda p, m=m, t=t: p @ (-m if t else m.mT) for m in basis], variables=2, representation=basis
            )
            for t in (False, True)
        ]
        assert groups[0].is_same_group(groups[1])


class TestFiles:
    """Groups in files and copies keep their law, their scale and their action."""

    @pytest.mark.parametrize("by", ["pickle", "deepcopy", "copy"])
    def test_every_group(self, case: GroupCase, by: str) -> None:
        group = case.make(scale=[0.2 + 0.3 * i for i in range(case.group.dim)])
        group.exp(torch.zeros(group.dim, dtype=torch.bfloat16))  # constants of other types are kept for later
        other = {"pickle": lambda g: pickle.loads(pickle.dumps(g)), "deepcopy": copy.deepcopy, "copy": copy.copy}[by](
            group
        )
        assert other is not group
        assert type(other) is type(group)
        assert other.is_same_group(group)
        assert torch.equal(other.scale, group.scale)
        v = random_vectors(group, 2, std=case.std)
        g = group.exp(v)
        assert torch.equal(other.exp(v), g)
        assert torch.equal(other.Ad(g), group.Ad(g))
        if case.has_action:
            for action in (other.action(), pickle.loads(pickle.dumps(group.action()))):
                x = 0.3 * randn(2, 4, max(action.point_dims))
                assert torch.equal(action(g, x).nan_to_num(), group.action()(g, x).nan_to_num())

    def test_lambdas_cannot(self) -> None:
        """Python itself has no name for them. A group whose action is a formula has not kept those it was made from."""
        flow = from_generators([lambda p: torch.sin(p) + 2.0], variables=1)
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pickle.dumps(flow)
        assert copy.deepcopy(flow).is_same_group(flow)
        group, x = planar(False), randn(5, 2)
        again = pickle.loads(pickle.dumps(group))
        g = group.random(generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert again.is_same_group(group)
        assert torch.equal(again.action()(g, x), group.action()(g, x))
