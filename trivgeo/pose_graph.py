r"""Pose graphs of a few hundred poses: measured relative poses, robust losses, and the covariance of the solution.

Normal equations are dense matrices, so that covariances of all pairs of poses are known; graphs of thousands of poses
belong to GTSAM, g2o, Ceres or SE-Sync.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from scipy.special import chdtrc
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import check_count, check_tensor, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, LieGroup, UncertainPose
from trivgeo.groups.rotations import rotation_from_quaternion, rotation_to_quaternion
from trivgeo.verdict import Verdict

__all__ = ["PoseGraph", "PoseGraphSolution"]

_MIN_PROBABILITY = 1e-3  # probability of the sum of squares below which stated covariances do not hold
_FIRST_DAMPING, _MAX_DAMPING = 1e-6, 1e8  # damping, in units of the diagonal of the normal equations
_MIN_CURVATURE_IN_ROUNDINGS = 1e3  # least eigenvalue of scaled normal equations, in roundings, of a graph that is held
_NARROWING, _NUM_STEPS_OF_A_WIDTH = 2.0, 5  # ratio of widths of a loss, in squares, and steps with each of them
_OUTLIER_WEIGHT = 0.5  # weight below which an edge counts as an outlier

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class PoseGraphSolution(Described):
    """The most probable poses of a graph, with their covariance.

    Attributes:
        graph: the graph with these poses.
        covariance: covariance of the errors v of all poses, ``g exp(v)``, ``[p n, p n]``; zero for fixed ones, NaN
            where the measurements do not determine the poses.
        squares: squared residuals of the edges, in units of their covariances, ``[e]``.
        weights: weights of the edges that the loss leaves, ``[e]``; one without a loss.
        cost: half of the sum of losses.
        verdict: whether the poses and covariances can be trusted.
    """

    graph: PoseGraph
    covariance: Float[Tensor, "k k"]
    squares: Float[Tensor, " e"]
    weights: Float[Tensor, " e"]
    cost: float
    verdict: Verdict

    @property
    def poses(self) -> UncertainPose:
        """The poses, ``[p]``, with the covariance of each."""
        n, group = self.graph.group.dim, self.graph.group
        blocks = self.covariance.unflatten(0, (-1, n)).unflatten(-1, (-1, n))  # [p, n, p, n]
        return UncertainPose(group, self.graph.poses, torch.einsum("pipj->pij", blocks))


@checked
class PoseGraph(Described):
    r"""Unknown poses g_i of which relative poses are measured, :math:`z \approx g_i^{-1} k\, g_j` on the edge (i, j).

    The error of a measurement is :math:`r = \log(z^{-1} g_i^{-1} k\, g_j)`, of known covariance. k is the identity but
    for sensors that see through a known motion, as in hand-eye calibration. Any group of poses will do.

    Args:
        group: the group.
        edges: numbers i, j of the poses, ``[e, 2]``.
        measured: z, ``[e, *element_shape]``.
        covariance: covariances of r, ``[e, dim, dim]`` or one for all.
        poses: first poses ``[p, *element_shape]``; default: from the measurements along a tree from the first pose,
            which is the identity.
        through: k, ``[e, *element_shape]`` or one for all; default the identity.

    Raises:
        ShapeError: tensors do not fit each other.
        ConfigurationError: there are no edges, or one from a pose to itself without ``through``; an edge names a pose
            that is not there, or no poses are given and edges do not connect them.
        DomainError: a covariance is not symmetric and positive definite.
        NonFiniteError: a measurement holds NaN or infinity.

    Example:
        >>> group = SE(2)
        >>> edges = torch.tensor([[0, 1], [1, 2], [0, 2]])
        >>> graph = PoseGraph(group, edges, group.random(3, std=0.1), 0.01 * torch.eye(3))
        >>> graph.solve().poses.mean.shape
        torch.Size([3, 2, 3])
    """

    def __init__(
        self,
        group: LieGroup,
        edges: Int[Tensor, "e 2"],
        measured: Tensor,
        covariance: Float[Tensor, "*#e n n"],
        poses: Tensor | None = None,
        through: Tensor | None = None,
    ) -> None:
        measured = group.check_elements(measured, "measured")
        count, n = len(edges), group.dim
        if edges.ndim != 2 or edges.shape[1] != 2 or group.batch_shape(measured) != (count,):
            raise ShapeError(
                f"edges, measured: expected [e, 2] and e elements, got {list(edges.shape)}, {list(measured.shape)}"
            )
        if count == 0 or (through is None and bool((edges[:, 0] == edges[:, 1]).any())):
            raise ConfigurationError(f"edges: expected some, each of two different poses, got {edges.tolist()}")
        if covariance.shape not in ((n, n), (count, n, n)):
            raise ShapeError(f"covariance: expected [{count}, {n}, {n}] or [{n}, {n}], got {list(covariance.shape)}")
        if not bool(torch.isfinite(measured).all()):
            raise NonFiniteError("measured: expected finite numbers, got NaN or infinity")
        if bool((torch.linalg.cholesky_ex(covariance.double())[1] > 0).any()):
            raise DomainError("covariance: expected positive definite matrices, got others")
        UncertainPose(group, measured, covariance)  # refuses matrices that are not symmetric
        through = group.identity().to(measured) if through is None else group.check_elements(through, "through")
        if group.batch_shape(through) not in ((), (count,)):
            raise ShapeError(f"through: expected one element or {count}, got {list(through.shape)}")
        self.group = group
        self.edges = edges.long()
        self.measured = measured
        self.covariance = covariance.to(measured).expand(count, n, n)
        self.through = through.to(measured).expand(measured.shape)
        number = 1 + int(edges.max()) if poses is None else len(group.check_elements(poses, "poses"))
        if int(edges.min()) < 0 or int(edges.max()) >= number:
            raise ConfigurationError(f"edges: expected numbers of {number} poses, got {edges.tolist()}")
        self.poses = self._along_a_tree(number) if poses is None else poses.to(measured)

    def solve(
        self, loss: Loss | None = None, *, fixed: Sequence[int] = (0,), max_iterations: int = 100
    ) -> PoseGraphSolution:
        r"""Return the poses that minimise :math:`\tfrac12 \sum \rho(r^T S^{-1} r)`, by Levenberg-Marquardt steps.

        Two starts are tried, the poses of the graph and a tree of measurements; the better end is returned. A loss is
        first made wide, :math:`\mu \rho(s / \mu)` with falling :math:`\mu`, so that wrong edges at the start do not
        matter (graduated non-convexity, Blake and Zisserman 1987). The covariance is the inverse of the normal
        equations, with the weights that the loss leaves.

        Args:
            loss: rho, a function of squares, such as `trivgeo.inversion.energies.GemanMcClure` against wrong edges; its
                derivative is the weight of an edge. Default: the squares.
            fixed: numbers of poses that are known; none where ``through`` fixes the frame.
            max_iterations: the largest number of steps of each start.

        Raises:
            ConfigurationError: a fixed pose is not there.
        """
        check_count("max_iterations", max_iterations)
        number = len(self.poses)
        if not all(0 <= i < number for i in fixed):
            raise ConfigurationError(f"fixed: expected numbers of {number} poses, got {list(fixed)}")
        starts = [self.poses]
        if fixed and self._is_connected(number):
            starts.append(self._along_a_tree(number, fixed[0]))
            if len(fixed) > 1:
                starts[1][list(fixed)] = self.poses[list(fixed)]
        ends = [self._graduated(start, loss, fixed, max_iterations) for start in starts]
        poses, converged = min(ends, key=lambda end: self._cost(end[0], loss))
        return self._solution(poses, loss, fixed, converged)

    def residuals(self, poses: Tensor) -> Float[Tensor, "e n"]:
        """Return the errors r of all edges for ``poses``, ``[e, dim]``."""
        return self.group.log(self.group.compose(self.group.inverse(self.measured), self._relative(poses)))

    def _relative(self, poses: Tensor) -> Tensor:
        """g_i^-1 k g_j, ``[e, *element_shape]``."""
        group, (i, j) = self.group, self.edges.unbind(-1)
        return group.compose(group.inverse(poses[i]), group.compose(self.through, poses[j]))

    def _squares(self, poses: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(self._roots(), self.residuals(poses).unsqueeze(-1), upper=False)
        return white.squeeze(-1).square().sum(-1).nan_to_num(torch.inf)

    def _roots(self) -> Tensor:
        return torch.linalg.cholesky(self.covariance)

    def _cost(self, poses: Tensor, loss: Loss | None) -> float:
        squares = self._squares(poses)
        return 0.5 * float((squares if loss is None else loss(squares)).nan_to_num(torch.inf).sum())

    def _normal_equations(self, poses: Tensor, loss: Loss | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The matrix ``[p n, p n]``, minus the right side ``[p n]``, squares and weights of the edges."""
        group, n, number = self.group, self.group.dim, len(poses)
        relative = self._relative(poses)
        r = group.log(group.compose(group.inverse(self.measured), relative))
        second = torch.linalg.inv(group.right_jacobian(r))
        first = -second @ group.Ad(group.inverse(relative))
        root = self._roots()
        white = [torch.linalg.solve_triangular(root, x, upper=False) for x in (r.unsqueeze(-1), first, second)]
        squares = white[0].square().sum((-2, -1))
        weights = torch.ones_like(squares)
        if loss is not None:
            weights = torch.func.grad(lambda s: loss(s).sum())(squares).clamp(min=0.0)
        both = torch.cat(white[1:], -1)  # [e, n, 2 n]
        blocks = weights[:, None, None] * both.mT @ both
        slopes = (weights[:, None, None] * both.mT @ white[0]).squeeze(-1)
        matrix, slope = r.new_zeros(number, number, n, n), r.new_zeros(number, n)
        for a in (0, 1):
            slope.index_add_(0, self.edges[:, a], slopes[:, a * n : (a + 1) * n])
            for b in (0, 1):
                part = blocks[:, a * n : (a + 1) * n, b * n : (b + 1) * n]
                matrix.index_put_((self.edges[:, a], self.edges[:, b]), part, accumulate=True)
        return matrix.transpose(1, 2).reshape(number * n, number * n), slope.flatten(), squares, weights

    def _free(self, fixed: Sequence[int]) -> Tensor:
        free = torch.ones(len(self.poses), self.group.dim, dtype=torch.bool, device=self.poses.device)
        free[list(fixed)] = False
        return free.flatten().nonzero().squeeze(-1)

    def _graduated(
        self, poses: Tensor, loss: Loss | None, fixed: Sequence[int], max_iterations: int
    ) -> tuple[Tensor, bool]:
        """The end of a descent, for losses that get narrower and narrower."""
        if loss is not None:
            poses, _ = self._descend(poses, None, fixed, max_iterations)
            width = float(self._squares(poses).clamp(max=1e12).max())
            while width > 1.0:
                poses, _ = self._descend(poses, _widened(loss, width), fixed, _NUM_STEPS_OF_A_WIDTH)
                width /= _NARROWING
        return self._descend(poses, loss, fixed, max_iterations)

    def _descend(
        self, poses: Tensor, loss: Loss | None, fixed: Sequence[int], max_iterations: int
    ) -> tuple[Tensor, bool]:
        free, damping, n = self._free(fixed), _FIRST_DAMPING, self.group.dim
        cost = self._cost(poses, loss)
        eps = torch.finfo(poses.dtype).eps
        for _ in range(max_iterations):
            matrix, slope, *_ = self._normal_equations(poses, loss)
            matrix, slope = matrix[free][:, free], slope[free]
            scale = matrix.diagonal().clamp(min=1e-12 * float(matrix.diagonal().max()))
            while damping < _MAX_DAMPING:
                root, failed = torch.linalg.cholesky_ex(matrix + torch.diag(damping * scale))
                step = -torch.cholesky_solve(slope.unsqueeze(-1), root).squeeze(-1) if not failed else slope * torch.nan
                v = torch.zeros(len(poses) * n).to(slope).index_copy(0, free, step).unflatten(0, (-1, n))
                moved = self.group.retract(poses, v)
                new = self._cost(moved, loss) if bool(torch.isfinite(step).all()) else torch.inf
                if new <= cost:
                    break
                damping *= 10.0
            else:
                return poses, bool((slope.square() / scale).sum() < 1e-6 * (1.0 + cost))
            small = float(step.abs().max()) < eps**0.5 * 10.0 or cost - new < eps * (1.0 + cost)
            poses, cost, damping = self.group.project(moved), new, max(damping / 10.0, 1e-12)
            if small:
                return poses, True
        return poses, False

    def _solution(self, poses: Tensor, loss: Loss | None, fixed: Sequence[int], converged: bool) -> PoseGraphSolution:
        matrix, _, squares, weights = self._normal_equations(poses, loss)
        free, n = self._free(fixed), self.group.dim
        kept = matrix[free][:, free]
        size = kept.diagonal().clamp(min=1e-300).sqrt()
        scaled = kept / size / size.unsqueeze(-1)
        least = float(torch.linalg.eigvalsh(scaled)[0]) if len(kept) else 1.0
        held = least > _MIN_CURVATURE_IN_ROUNDINGS * torch.finfo(kept.dtype).eps
        covariance = torch.zeros_like(matrix)
        inverse = torch.linalg.inv(scaled) / size / size.unsqueeze(-1) if held else torch.full_like(kept, torch.nan)
        covariance[free.unsqueeze(-1), free] = inverse
        reasons, assumptions = [], ["no other minimum of the sum of losses is lower"]
        if not converged:
            reasons.append("the steps did not converge")
        if not held:
            reasons.append("the measurements leave a motion of the poses free")
        inliers = weights >= _OUTLIER_WEIGHT
        freedom = n * int(inliers.sum()) - len(free)
        total = float(squares[inliers].sum())
        if freedom > 0 and float(chdtrc(freedom, total)) < _MIN_PROBABILITY:
            reasons.append(
                f"residuals are larger than their covariances say: {total:.0f} for {freedom} degrees of freedom"
            )
        if freedom <= 0:
            assumptions.append("the covariances of the measurements, which no further measurement tests")
        if not bool(inliers.all()):
            assumptions.append(f"{int((~inliers).sum())} of {len(inliers)} edges are outliers")
        graph = PoseGraph(self.group, self.edges, self.measured, self.covariance, poses, self.through)
        cost = self._cost(poses, loss)
        return PoseGraphSolution(graph, covariance, squares, weights, cost, Verdict(tuple(reasons), tuple(assumptions)))

    def _is_connected(self, number: int) -> bool:
        return len(self._tree(number, 0)) == number - 1

    def _tree(self, number: int, first: int) -> list[tuple[int, int, int]]:
        """Edges of a tree from a pose, breadth first: the pose that is known, the new one, the number of the edge."""
        near: list[list[tuple[int, int]]] = [[] for _ in range(number)]
        for k, (i, j) in enumerate(self.edges.tolist()):
            near[i].append((j, k))
            near[j].append((i, k))
        known, queue, tree = {first}, [first], []
        for i in queue:  # grows
            for j, k in near[i]:
                if j not in known:
                    known.add(j)
                    queue.append(j)
                    tree.append((i, j, k))
        return tree

    def _along_a_tree(self, number: int, first: int = 0) -> Tensor:
        tree, group = self._tree(number, first), self.group
        if len(tree) < number - 1:
            raise ConfigurationError(f"edges: expected a connected graph of {number} poses, or first poses for others")
        start = self.poses[first] if hasattr(self, "poses") else group.identity().to(self.measured)
        poses = start.expand(number, *group.element_shape).clone()
        for i, j, k in tree:
            z, middle = self.measured[k], self.through[k]
            if int(self.edges[k, 0]) == i:  # z = g_i^-1 k g_j
                poses[j] = group.compose(group.inverse(middle), group.compose(poses[i], z))
            else:  # z = g_j^-1 k g_i
                poses[j] = group.compose(group.compose(middle, poses[i]), group.inverse(z))
        return poses

    @staticmethod
    def read_g2o(path: str | Path) -> PoseGraph:
        """Return the graph of a g2o file, in float64, of SE(2) or SE(3).

        Lines of VERTEX_SE2, EDGE_SE2, VERTEX_SE3:QUAT and EDGE_SE3:QUAT are read, and others ignored. Poses are in the
        order of the file. Information matrices of rotations in space are in halves of angles there, as in g2o itself.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the file is no text, has no edges or no poses, or mixes both groups; a line has other
                numbers than its kind, or an edge names an unknown pose.
            DomainError: an information matrix is not positive definite.
            OSError: the file cannot be read.
        """
        vertices: dict[int, list[float]] = {}
        edges: list[tuple[int, int]] = []
        values: list[list[float]] = []
        sizes: set[int] = set()
        try:
            lines = Path(path).read_text().splitlines()
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"path: expected a text file of g2o, got {path}, which is no text") from error
        for place, line in enumerate(lines, 1):
            kind, *numbers = line.split() or [""]
            if kind not in _KINDS:
                continue
            _check_line(kind, numbers, f"{path}, line {place}")
            sizes.add(_KINDS[kind])
            if kind.startswith("VERTEX"):
                vertices[int(numbers[0])] = [float(x) for x in numbers[1:]]
            else:
                edges.append((int(numbers[0]), int(numbers[1])))
                values.append([float(x) for x in numbers[2:]])
        if len(sizes) != 1 or not edges or not vertices:
            raise ConfigurationError(
                f"path: expected vertices and edges of SE2 or SE3:QUAT in {path}, got {len(edges)} edges"
            )
        places = {identity: place for place, identity in enumerate(vertices)}
        unknown = {i for edge in edges for i in edge} - places.keys()
        if unknown:
            raise ConfigurationError(
                f"path: expected edges between poses of {path}, got unknown poses {sorted(unknown)}"
            )
        n = sizes.pop()
        table = torch.tensor(values, dtype=torch.float64)
        width = 3 if n == 2 else 7
        dim = 3 if n == 2 else 6
        rows, columns = torch.triu_indices(dim, dim)
        information = torch.zeros(len(edges), dim, dim, dtype=torch.float64)
        information[:, rows, columns] = information[:, columns, rows] = table[:, width:]
        if bool((torch.linalg.cholesky_ex(information)[1] > 0).any()):
            raise DomainError(f"path: expected positive definite information matrices of edges in {path}, got others")
        order, unit = _file_coordinates(n)
        covariance = torch.linalg.inv(information)[:, order][:, :, order] * unit * unit.unsqueeze(-1)
        poses = _from_file(n, torch.tensor(list(vertices.values()), dtype=torch.float64))
        numbers_of = torch.tensor([[places[i], places[j]] for i, j in edges])
        return PoseGraph(SE(n), numbers_of, _from_file(n, table[:, :width]), covariance, poses)

    def write_g2o(self, path: str | Path) -> None:
        """Write poses and edges to a g2o file, see `read_g2o`.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the group is not SE(2) or SE(3) in its natural basis, or edges go through known motions.
        """
        group = self.group
        if not isinstance(group, SE) or group.size not in (2, 3) or not group.basis.is_natural:
            raise ConfigurationError(f"group: expected SE(2) or SE(3) in its natural basis for g2o, got {group!r}")
        if not torch.equal(self.through, group.identity().to(self.through).expand_as(self.through)):
            raise ConfigurationError("through: expected identities for g2o, got other elements")
        n = group.size
        order, unit = _file_coordinates(n)
        back = order.argsort()
        scaled = self.covariance.double() / unit / unit.unsqueeze(-1)
        information = torch.linalg.inv(scaled[:, back][:, :, back])
        rows, columns = torch.triu_indices(group.dim, group.dim)
        name = "SE2" if n == 2 else "SE3:QUAT"
        lines = [_line(f"VERTEX_{name} {i}", x) for i, x in enumerate(_to_file(n, self.poses))]
        for (i, j), z, upper in zip(
            self.edges.tolist(), _to_file(n, self.measured), information[:, rows, columns], strict=True
        ):
            lines.append(_line(f"EDGE_{name} {i} {j}", torch.cat([z, upper])))
        Path(path).write_text("\n".join(lines) + "\n")


def _widened(loss: Loss, factor: float) -> Loss:
    return lambda squares: factor * loss(squares / factor)


_KINDS = {"VERTEX_SE2": 2, "EDGE_SE2": 2, "VERTEX_SE3:QUAT": 3, "EDGE_SE3:QUAT": 3}


def _file_coordinates(n: int) -> tuple[Tensor, Tensor]:
    """Places of our coordinates, rotation first, in those of a file, and their sizes in units of a file's."""
    if n == 2:
        return torch.tensor([2, 0, 1]), torch.ones(3, dtype=torch.float64)
    return torch.tensor([3, 4, 5, 0, 1, 2]), torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64)


def _from_file(n: int, x: Tensor) -> Tensor:
    """Elements of rows x, y, angle or x, y, z, qx, qy, qz, qw."""
    group = SE(n)
    rotation = group.linear.exp(x[:, 2:]) if n == 2 else rotation_from_quaternion(x[:, [6, 3, 4, 5]])
    return group.join(rotation, x[:, :n])


def _to_file(n: int, g: Tensor) -> Tensor:
    group = SE(n)
    rotation, shift = group.split(check_tensor("g", g).double())
    turn = group.linear.log(rotation) if n == 2 else rotation_to_quaternion(rotation)[:, [1, 2, 3, 0]]
    return torch.cat([shift, turn], -1)


def _check_line(kind: str, numbers: Sequence[str], place: str) -> None:
    """Refuse a line of a g2o file whose numbers are not those of its kind."""
    names, coordinates, dim = (2, 7, 6) if _KINDS[kind] == 3 else (2, 3, 3)
    expected = 1 + coordinates if kind.startswith("VERTEX") else names + coordinates + dim * (dim + 1) // 2
    whole = 1 if kind.startswith("VERTEX") else names
    try:
        [int(number) for number in numbers[:whole]]
        is_good = len(numbers) == expected and all(math.isfinite(float(number)) for number in numbers[whole:])
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigurationError(
            f"path: expected {expected} numbers after {kind}, the first {whole} whole, in {place}; got {numbers}"
        )


def _line(head: str, numbers: Tensor) -> str:
    return " ".join([head, *(f"{x:.17g}" for x in numbers.tolist())])
