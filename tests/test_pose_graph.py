"""Pose graphs against linear least squares, known errors, wrong edges, files of g2o, and hand-eye calibration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.helpers import assert_relative, seeded
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, LieGroup, Translation
from trivgeo.inversion.energies import GemanMcClure
from trivgeo.pose_graph import PoseGraph


def circle(group: LieGroup, number: int, std: float, seed: int = 0, chords: int = 0) -> tuple[PoseGraph, Tensor]:
    """Poses on a walk with closed loops, and the truth; covariances differ by edge."""
    generator = seeded(seed)
    steps = group.random(number, std=0.4, generator=generator, dtype=torch.float64)
    truth = [group.identity(dtype=torch.float64)]
    for step in steps[1:]:
        truth.append(group.compose(truth[-1], step))
    poses = torch.stack(truth)
    i = torch.arange(number)
    edges = torch.stack([i, (i + 1) % number], -1)
    more = torch.randint(number, (chords, 2), generator=generator)
    edges = torch.cat([edges, more[more[:, 0] != more[:, 1]]])
    sizes = std * (0.5 + torch.rand(len(edges), group.dim, generator=generator, dtype=torch.float64))
    relative = group.compose(group.inverse(poses[edges[:, 0]]), poses[edges[:, 1]])
    # r = log(z^-1 g_ij) is normal for z = g_ij exp(-r)
    noise = sizes * torch.randn(len(edges), group.dim, generator=generator, dtype=torch.float64)
    return PoseGraph(group, edges, group.retract(relative, -noise), torch.diag_embed(sizes**2)), poses


class TestSolution:
    def test_linear_least_squares(self) -> None:
        group = Translation(2)
        graph, _ = circle(group, 6, 0.1, chords=4)
        found = graph.solve()
        count = len(graph.edges)
        design = torch.zeros(count, 2, 6, 2).double()
        for k, (i, j) in enumerate(graph.edges.tolist()):
            design[k, :, j] += torch.eye(2)
            design[k, :, i] -= torch.eye(2)
        free = design[:, :, 1:].reshape(count * 2, 10)
        precision = torch.block_diag(*graph.covariance.inverse())
        normal = free.mT @ precision @ free
        expected = torch.linalg.solve(normal, free.mT @ precision @ graph.measured.flatten())
        assert_relative(found.poses.mean[1:].flatten(), expected, 1e-8)
        assert_relative(found.covariance[2:, 2:], normal.inverse(), 1e-8)
        assert found.verdict.trusted

    def test_stated_errors(self) -> None:
        """Errors of SE(3) graphs, in units of their covariance, are chi-squared."""
        group, squares, trusted = SE(3), [], 0
        for seed in range(20):
            graph, truth = circle(group, 8, 0.03, seed, chords=6)
            found = graph.solve()
            trusted += found.verdict.trusted
            v = group.log(group.compose(group.inverse(found.poses.mean), truth)).flatten()[6:]
            squares.append(float(v @ torch.linalg.solve(found.covariance[6:, 6:], v)))
        assert stats.kstest(squares, stats.chi2(42).cdf).pvalue > 0.01
        assert trusted >= 19

    def test_gradient_vanishes(self) -> None:
        group = SE(2)
        graph, _ = circle(group, 10, 0.1, chords=8)
        found = graph.solve()

        def cost(v: Tensor) -> Tensor:
            moved = group.retract(found.poses.mean, torch.cat([torch.zeros(1, 3), v]).double())
            r = graph.residuals(moved)
            return 0.5 * torch.einsum("ei,eij,ej->", r, graph.covariance.inverse(), r)

        zero = torch.zeros(9, 3).double()
        assert float(torch.func.grad(cost)(zero).abs().max()) < 1e-3
        assert abs(found.cost - float(cost(zero))) < 1e-8
        assert abs(found.cost - 0.5 * float(found.squares.sum())) < 1e-8

    def test_starts_far_away(self) -> None:
        """A poor start does not matter where the tree is a good one."""
        graph, _ = circle(SE(3), 12, 0.02, chords=8)
        start = SE(3).random(12, std=2.0, generator=seeded(9), dtype=torch.float64)
        spoiled = PoseGraph(SE(3), graph.edges, graph.measured, graph.covariance, start)
        assert abs(spoiled.solve().cost - graph.solve().cost) < 1e-5

    def test_many_poses(self) -> None:
        graph, truth = circle(SE(2), 200, 0.01, chords=300)
        found = graph.solve()
        assert found.verdict.trusted
        assert SE(2).distance(found.poses.mean, truth).max() < 0.2


class TestVerdict:
    def spoiled(self) -> tuple[PoseGraph, Tensor]:
        graph, truth = circle(SE(3), 10, 0.02, chords=20)
        measured = graph.measured.clone()
        measured[-3:] = SE(3).random(3, std=1.0, generator=seeded(4), dtype=torch.float64)
        return PoseGraph(SE(3), graph.edges, measured, graph.covariance), truth

    def test_wrong_edges(self) -> None:
        graph, truth = self.spoiled()
        found = graph.solve()
        assert "residuals" in found.verdict.reasons[0]
        robust = graph.solve(GemanMcClure(8.0))
        assert robust.verdict.trusted, robust.verdict
        assert "3 of" in robust.verdict.assumptions[-1]
        assert float(robust.weights[-3:].max()) < 0.1
        assert SE(3).distance(robust.poses.mean, truth).max() < 0.15
        assert SE(3).distance(found.poses.mean, truth).max() > 0.3

    def test_free_motions(self) -> None:
        group = SE(2)
        edges = torch.tensor([[0, 1], [2, 3]])
        measured = group.random(2, generator=seeded(0), dtype=torch.float64)
        with pytest.raises(ConfigurationError, match="connected"):
            PoseGraph(group, edges, measured, torch.eye(3))
        start = group.identity(4, dtype=torch.float64)
        found = PoseGraph(group, edges, measured, torch.eye(3), start).solve()
        assert any("free" in reason for reason in found.verdict.reasons)
        assert found.covariance[3:, 3:].isnan().all()

    def test_a_tree_tests_nothing(self) -> None:
        graph, _ = circle(SE(2), 5, 0.1)
        tree = PoseGraph(SE(2), graph.edges[:-1], graph.measured[:-1], graph.covariance[:-1])
        found = tree.solve()
        assert found.cost < 1e-10
        assert any("which no further measurement tests" in text for text in found.verdict.assumptions)


class TestHandEye:
    def test_camera_on_a_hand(self) -> None:
        """A camera sees a target from known poses G of the hand: z = X^-1 G^-1 T, camera X, target T."""
        group, generator = SE(3), seeded(1)
        x, t = group.random(2, std=0.8, generator=generator, dtype=torch.float64)
        hands = group.random(15, std=1.0, generator=generator, dtype=torch.float64)
        seen = group.compose(group.inverse(group.compose(hands, x)), t)
        measured = group.retract(seen, 0.01 * torch.randn(15, 6, generator=generator, dtype=torch.float64))
        graph = PoseGraph(
            group,
            torch.tensor([[0, 1]]).expand(15, 2),
            measured,
            1e-4 * torch.eye(6),
            poses=group.identity(2),
            through=group.inverse(hands),
        )
        found = graph.solve(fixed=())
        assert found.verdict.trusted, found.verdict
        off = group.log(group.compose(group.inverse(found.poses.mean), torch.stack([x, t]))).flatten()
        assert stats.chi2(12).sf(float(off @ torch.linalg.solve(found.covariance, off))) > 0.01
        assert off.abs().max() < 0.05
        with pytest.raises(ConfigurationError, match="through"):
            graph.write_g2o("never.g2o")


class TestFiles:
    @pytest.mark.parametrize("n", [2, 3])
    def test_round_trip(self, n: int, tmp_path: Path) -> None:
        graph, _ = circle(SE(n), 6, 0.1, chords=4)
        full = PoseGraph(SE(n), graph.edges, graph.measured, graph.covariance + 1e-3, graph.poses)
        full.write_g2o(tmp_path / "graph.g2o")
        back = PoseGraph.read_g2o(tmp_path / "graph.g2o")
        assert torch.equal(back.edges, full.edges)
        for name in ("poses", "measured", "covariance"):
            assert_relative(getattr(back, name), getattr(full, name), 1e-9)

    def test_lines_of_g2o(self, tmp_path: Path) -> None:
        """A quarter turn about z. The information of half of the angle about x is 4, so that the variance is 1."""
        information = torch.diag(torch.tensor([1.0, 2.0, 5.0, 4.0, 16.0, 8.0]))
        upper = " ".join(str(float(x)) for x in information[tuple(torch.triu_indices(6, 6))])
        path = tmp_path / "lines.g2o"
        path.write_text(
            "VERTEX_SE3:QUAT 7 0 0 0 0 0 0 1\nVERTEX_SE3:QUAT 9 1 2 3 0 0 0.70710678 0.70710678\nFIX 7\n\n"
            f"EDGE_SE3:QUAT 7 9 1 2 3 0 0 0.70710678 0.70710678 {upper}\n"
        )
        graph = PoseGraph.read_g2o(path)
        assert graph.edges.tolist() == [[0, 1]]
        turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()
        assert_relative(graph.measured[0, :, :3], turn, 1e-7)
        assert_relative(graph.measured[0, :, 3], torch.tensor([1.0, 2.0, 3.0]).double(), 1e-12)
        variances = torch.tensor([1.0, 0.25, 0.5, 1.0, 0.5, 0.2]).double()
        assert_relative(graph.covariance[0].diagonal().contiguous(), variances, 1e-7)

    def test_bad_files(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.g2o"
        path.write_text("VERTEX_SE2 0 0 0 0\n")
        with pytest.raises(ConfigurationError, match="0 edges"):
            PoseGraph.read_g2o(path)
        path.write_text("VERTEX_SE2 0 0 0 0\nEDGE_SE2 0 5 1 0 0 1 0 0 1 0 1\n")
        with pytest.raises(ConfigurationError, match="unknown poses"):
            PoseGraph.read_g2o(path)
        for line in (
            "EDGE_SE2 0 1 1 0 0 1 0 0",
            "EDGE_SE2 0 one 1 0 0 1 0 0 1 0 1",
            "EDGE_SE2 0 1 nan 0 0 1 0 0 1 0 1",
        ):
            path.write_text(f"VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0 0\n{line}\n")
            with pytest.raises(ConfigurationError, match=r"expected 11 numbers after EDGE_SE2.*line 3"):
                PoseGraph.read_g2o(path)
        path.write_text("VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0 0\nEDGE_SE2 0 1 1 0 0 0 0 0 0 0 0\n")
        with pytest.raises(DomainError, match="positive definite information"):
            PoseGraph.read_g2o(path)
        path.write_bytes(b"\xff\xd8\xff\xe0")
        with pytest.raises(ConfigurationError, match="no text"):
            PoseGraph.read_g2o(path)
        with pytest.raises(ConfigurationError, match="natural basis"):
            circle(Translation(2), 4, 0.1)[0].write_g2o(path)


def test_bad_input() -> None:
    group = SE(2)
    edges = torch.tensor([[0, 1]])
    with pytest.raises(ShapeError, match="e elements"):
        PoseGraph(group, edges, group.identity(2), torch.eye(3))
    with pytest.raises(ShapeError, match="covariance"):
        PoseGraph(group, edges, group.identity(1), torch.eye(2))
    with pytest.raises(ConfigurationError, match="numbers of 1 poses"):
        PoseGraph(group, edges, group.identity(1), torch.eye(3), group.identity(1))
    for bad in (edges[:0], torch.zeros_like(edges)):
        with pytest.raises(ConfigurationError, match="edges: expected some, each of two different poses"):
            PoseGraph(group, bad, group.identity(len(bad)), torch.eye(3))
    for wrong in (-torch.eye(3), torch.zeros(3, 3), torch.full((3, 3), math.nan)):
        with pytest.raises(DomainError, match="covariance: expected positive definite"):
            PoseGraph(group, edges, group.identity(1), wrong)
    with pytest.raises(DomainError, match="covariance: expected symmetric"):
        PoseGraph(group, edges, group.identity(1), torch.eye(3) + torch.ones(3, 3).triu(1) / 9.0)
    with pytest.raises(NonFiniteError, match="measured"):
        PoseGraph(group, edges, group.identity(1) * torch.nan, torch.eye(3))
    graph = PoseGraph(group, edges, group.identity(1), torch.eye(3))
    with pytest.raises(ConfigurationError, match="fixed"):
        graph.solve(fixed=(2,))
