"""Warps of volumes against SciPy and closed forms; volumes of files against nibabel."""

import math
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from nibabel.processing import resample_from_to
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements
from trivgeo.actions import ImageWarp, PointCloud, Volume, itk_matrix
from trivgeo.actions.image import sample_with_slopes
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SE, SO, Affine, LieGroup, Projective, Similarity, Translation
from trivgeo.inversion import Inverter, TestTimeEquivariant
from trivgeo.inversion.energies import FramedEnergy
from trivgeo.inversion.stages import GaussianSearch

GROUPS = [SO(3), SE(3), Similarity(3), Affine(3), Translation(3), Projective(3)]
SIZE = (9, 12, 17)  # depth, height, width


def grid(size: tuple[int, ...]) -> Tensor:
    """Centres (x, y, z) of the voxels, by hand."""
    z, y, x = np.mgrid[tuple(slice(side) for side in size)].astype(float)
    centres = [(2 * part + 1 - side) / max(size) for part, side in zip((x, y, z), size[::-1], strict=True)]
    return torch.from_numpy(np.stack(centres, -1))


def blob(points: Tensor) -> Tensor:
    """A smooth function that is as good as zero near the edge of a cube."""
    x, y, z = points.unbind(-1)
    bell = torch.exp(-14 * ((x - 0.1) ** 2 + (y + 0.05) ** 2 + 1.5 * (z - 0.05) ** 2))
    return bell * (1 + 0.5 * torch.sin(4 * x) + 0.3 * torch.cos(5 * y - 3 * z))


class TestWarps:
    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_are_those_of_scipy(self, group: LieGroup) -> None:
        """SciPy reads voxel p at the matrix times p, with axes d, h, w; homographies at mapped coordinates."""
        z, y, x = np.mgrid[tuple(slice(side) for side in SIZE)].astype(float)
        picture = np.sin(x / 3) + np.cos(y / 4) + np.sin((x + y - z) / 5)
        warp, volume = ImageWarp(group), torch.from_numpy(picture)[None]
        g = random_elements(group, 3, std=0.06, seed=4)
        matrices = warp.to_pixels(g, SIZE)
        assert_relative(warp.from_pixels(-3.0 * matrices, SIZE), g, 1e-9)
        covered = warp.coverage(g, SIZE)
        assert float(covered.double().mean()) > 0.5
        for matrix, moved, inside in zip(matrices, warp(g, volume)[:, 0], covered, strict=True):
            back = torch.linalg.inv(matrix).numpy()
            px, py, pz, pw = np.einsum("ij,jdhw->idhw", back, np.stack([x, y, z, np.ones_like(x)]))
            expected = ndimage.map_coordinates(picture, [pz / pw, py / pw, px / pw], order=1, mode="nearest")
            if not isinstance(group, Projective):
                linear, shift = back[2::-1, 2::-1], back[2::-1, 3]
                assert np.allclose(expected, ndimage.affine_transform(picture, linear, shift, order=1, mode="nearest"))
            assert float((moved - torch.from_numpy(expected))[inside].abs().max()) < 1e-9

    def test_what_is_covered_does_not_depend_on_the_outside(self) -> None:
        g, volume = random_elements(SE(3), 4, std=0.3, seed=2), rand(2, *SIZE)
        plain, filled = (ImageWarp(SE(3), fill=fill)(g, volume) for fill in (0.0, 5.0))
        same = ((plain - filled).abs() < 1e-9).all(1)
        assert bool((same == ImageWarp(SE(3)).coverage(g, SIZE)).all())

    @pytest.mark.parametrize(("axis", "planes"), [(0, (-3, -2)), (1, (-1, -3)), (2, (-2, -1))])
    def test_quarter_turns(self, axis: int, planes: tuple[int, int]) -> None:
        """A positive turn about z takes x to y: from w to h; about x it takes y to z, and about y z to x."""
        omega = torch.zeros(3, dtype=torch.float64)
        omega[axis] = math.pi / 2
        matrix = torch.linalg.matrix_exp(torch.linalg.cross(omega.expand(3, 3), torch.eye(3, dtype=torch.float64)).mT)
        g = ImageWarp(SO(3)).point_action.from_homogeneous(torch.block_diag(matrix, torch.ones(1)).double())
        volume, last = rand(2, 7, 7, 7), {0: (-2, -3), 1: (-3, -1), 2: (-1, -2)}[axis]
        turned = ImageWarp(SO(3))(g, volume)
        assert_relative(turned, volume.rot90(1, last), 1e-9)
        assert not torch.allclose(turned, volume.rot90(-1, last))

    @pytest.mark.parametrize("group", [SE(3), Projective(3)], ids=str)
    def test_is_a_left_action_of_second_order(self, group: LieGroup) -> None:
        g, h = random_elements(group, 2, std=0.08, seed=3)
        warp, errors = ImageWarp(group), []
        for side in (24, 48):
            volume = blob(grid((side,) * 3))[None]
            inner = (slice(None), *(slice(side // 4, -side // 4),) * 3)
            twice = warp(g, warp(h, volume)) - warp(group.compose(g, h), volume)
            exact = warp(g, volume)[0] - blob(
                warp.point_action(group.inverse(g), grid((side,) * 3).flatten(0, -2))
            ).unflatten(0, (side,) * 3)
            errors.append((float(twice[inner].square().mean().sqrt()), float(exact[inner[1:]].square().mean().sqrt())))
        for coarse, fine in zip(*errors, strict=True):
            assert 1.6 < math.log2(coarse / fine) < 2.6

    def test_batches_and_lists(self) -> None:
        warp, g, volumes = ImageWarp(SE(3)), random_elements(SE(3), 2, std=0.2, seed=1), rand(2, 3, *SIZE)
        moved = warp(g, volumes)
        several = warp(g[:, None].expand(2, 5, *g.shape[1:]), volumes[:, None])
        assert_relative(several, moved[:, None].expand(2, 5, 3, *SIZE), 1e-12)
        small = volumes[1, :, :5]
        by_size = warp(g, [volumes[0], small])
        assert_relative(by_size[0], moved[0], 1e-12)
        assert_relative(by_size[1], warp(g[1], small), 1e-12)

    @pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
    def test_derivatives(self, padding: str) -> None:
        warp, x = ImageWarp(SE(3), padding=padding), rand(1, 4, 5, 6)  # type: ignore[arg-type]
        v = 0.2 * randn(6, seed=3)

        def moved(v: Tensor) -> Tensor:
            return warp(SE(3).exp(v), x).flatten()

        forward = torch.func.jacfwd(moved)(v)
        leaf = v.clone().requires_grad_()
        rows = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in moved(leaf)]
        assert_relative(forward, torch.stack(rows), 1e-12)
        assert_relative(forward, numeric_jacobian(moved, v, 1e-6), 1e-6)

    def test_slopes(self) -> None:
        x = rand(2, 3, *SIZE)
        position = torch.stack(
            [rand(2, 40, seed=axis, low=-3.0, high=side + 2.0) for axis, side in enumerate(SIZE[::-1])], -1
        )
        position.requires_grad_()
        values, *slopes = sample_with_slopes(x, position)
        scaled = 2.0 * (position + 0.5) / position.new_tensor(SIZE[::-1]) - 1.0
        expected = functional.grid_sample(x, scaled[:, :, None, None], align_corners=False)[..., 0, 0]
        assert_relative(values, expected, 1e-12)
        channel = torch.stack(
            [torch.autograd.grad(values[:, c].sum(), position, retain_graph=True)[0] for c in range(3)], 1
        )
        assert_relative(torch.stack(slopes, -1), channel, 1e-12)

    def test_log_abs_det_jacobian(self) -> None:
        g, x = random_elements(Affine(3), 4, std=0.1, seed=0), rand(2, *SIZE)
        expected = 0.5 * x.numel() * torch.linalg.slogdet(Affine(3).homogeneous(g))[1]
        assert_relative(ImageWarp(Affine(3)).log_abs_det_jacobian(g, x), expected, 1e-9)
        mm = Volume(x, torch.diag(torch.tensor([2.0, 1.0, 3.0, 1.0], dtype=torch.float64)))
        assert_relative(ImageWarp(Affine(3)).log_abs_det_jacobian(g, mm), expected, 1e-9)

    def test_undefined_on_the_frame(self) -> None:
        group = Projective(3)
        matrix = torch.eye(4, dtype=torch.float64)
        matrix[3, 0] = 1.5  # the plane that goes to infinity cuts the frame
        g = torch.stack([group.identity(dtype=torch.float64), ImageWarp(group).point_action.from_homogeneous(matrix)])
        x = rand(1, 6, 6, 6)
        assert ImageWarp(group).is_valid(g, x).tolist() == [True, False]
        assert ImageWarp(group)(g, x).isnan().flatten(1).all(1).tolist() == [False, True]

    def test_refusals(self) -> None:
        with pytest.raises(ConfigurationError, match="expected bilinear for volumes"):
            ImageWarp(SE(3), "bicubic")
        with pytest.raises(ShapeError, match=r"\[\*batch, c, d, h, w\], got \[5, 6, 7\]; see Tensor.unsqueeze"):
            ImageWarp(SE(3)).check_data(torch.zeros(5, 6, 7))
        with pytest.raises(ShapeError, match="channels first"):
            ImageWarp(SE(3)).check_data(torch.zeros(20, 20, 20, 3))
        with pytest.raises(ConfigurationError, match="expected depth, height and width"):
            ImageWarp(SE(3)).to_pixels(SE(3).identity(), (4, 5))
        with pytest.raises(ShapeError, match=r"\[\*batch, 4, 4\]"):
            ImageWarp(SE(3)).from_pixels(torch.eye(3), (4, 5, 6))


class TestGuard:
    def test_costs_of_shifts(self) -> None:
        """Half of the contrast leaves the frame through the face of z, half stays."""
        volume = torch.zeros(1, 1, 8, 16, 16, dtype=torch.float64)
        volume[..., 6:, 6:10, 6:10] = 1.0
        volume[..., 1:3, 6:10, 6:10] = 1.0
        guard = ImageWarp(Translation(3)).guard
        assert guard is not None
        content = guard.content(volume)
        shifts = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.25], [2.5, 0.0, 0.0]], dtype=torch.float64)
        cost = guard.departure(shifts, content)
        upper = torch.tensor([6.0, 7.0]).double()  # cells of one voxel each along d, at z = (2 i + 1 - 8) / 16
        beyond = (((2 * upper - 7) / 16 + 0.25 - 0.5).clamp(min=0) / 0.1).square()
        assert_relative(cost[0], torch.zeros(()).double(), 1e-12)
        assert_relative(cost[1], 0.25 * beyond.log1p().sum(), 1e-9)
        assert_relative(guard.kept(shifts, content), torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64), 1e-12)

    def test_shrunk_to_nothing(self) -> None:
        volume = torch.ones(1, 1, 20, 20, 20, dtype=torch.float64)
        guard, group = ImageWarp(Similarity(3)).guard, Similarity(3)
        assert guard is not None
        content = guard.content(volume)
        # the uniform box of a side of 20 has deviations of 20 / sqrt 12, but for the discrete cells
        scales = torch.tensor([1.0, 0.02], dtype=torch.float64)
        matrix = torch.diag_embed(torch.stack([scales, scales, scales, torch.ones(2).double()], -1))
        g = ImageWarp(group).point_action.from_homogeneous(matrix)
        side = 2 * 20 * 0.02 / math.sqrt(12)
        expected = torch.tensor([0.0, 2 * math.log(8 / side**3)], dtype=torch.float64)
        assert_relative(guard.departure(g, content), expected, 2e-2)

    def test_of_volumes_of_files(self) -> None:
        guard = ImageWarp(SE(3)).guard
        assert guard is not None
        volume = Volume(rand(2, 1, 4, 5, 6), torch.eye(4).double().expand(2, 4, 4))
        far = SE(3).exp(torch.tensor([0.0, 0.0, 0.0, 500.0, 0.0, 0.0], dtype=torch.float64))
        content = guard.content(volume)
        assert guard.departure(far, content).tolist() == [0.0, 0.0]
        assert guard.kept(far, content).tolist() == [1.0, 1.0]


def test_inversion_and_equivariance() -> None:
    """A search puts a moved volume back, and a network behind it sees the volume as it was."""
    group = Translation(3)
    warp, clean = ImageWarp(group), torch.exp(-4 * grid((12, 12, 12)).square().sum(-1))[None, None]
    energy = FramedEnergy(lambda x: 1e3 * (x - clean).square().mean((1, 2, 3, 4)), 0.1)
    search = Inverter(warp, energy, [GaussianSearch(200, 8, 0.3)], progress=False)
    shift = torch.tensor([[0.2, -0.2, 0.4]], dtype=torch.float64)
    result = search(warp(shift, clean), generator=torch.Generator().manual_seed(0))
    assert float((result.best() - shift).abs().max()) < 0.06
    network = TestTimeEquivariant(nn.Flatten(), search)
    out = network(warp(shift, clean), generator=torch.Generator().manual_seed(0))
    assert float((out - clean.flatten(1)).square().mean().sqrt()) < 0.25 * float(clean.std())


def oblique(spacing: tuple[float, float, float], turn: tuple[float, float, float], shift: Tensor) -> Tensor:
    """The affine of a turned grid."""
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] = (
        SO(3).action().homogeneous(SO(3).exp(torch.tensor(turn, dtype=torch.float64)))[:3, :3]
        @ torch.diag(torch.tensor(spacing)).double()
    )
    matrix[:3, 3] = shift
    return matrix


class TestVolume:
    def test_resampled_as_by_nibabel(self) -> None:
        moving = Volume(
            rand(1, 11, 13, 15), oblique((1.0, 1.5, 2.5), (0.1, -0.2, 0.3), torch.tensor([-9.0, -8.0, -10.0]))
        )
        fixed = Volume(
            torch.zeros(1, 9, 8, 12).double(),
            oblique((1.2, 1.3, 1.1), (0.0, 0.1, 0.0), torch.tensor([-6.0, -5.0, -6.0])),
        )
        images = [nibabel.Nifti1Image(v.data[0].numpy().T, v.affine.numpy()) for v in (moving, fixed)]
        expected = resample_from_to(*images, order=1, mode="grid-constant").get_fdata()
        found = moving.resampled(fixed)
        assert_relative(found.data[0], torch.from_numpy(expected.T.copy()), 1e-9)
        assert found.affine.equal(fixed.affine)
        both = Volume(moving.data[None].expand(2, -1, -1, -1, -1), torch.stack([moving.affine, fixed.affine]))
        assert_relative(both.resampled(fixed).data[0], found.data, 1e-12)
        assert both.spacing[0].tolist() == pytest.approx([1.0, 1.5, 2.5])

    def test_motions_in_millimetres(self) -> None:
        """The action is exact, and moves bright voxels as it moves points of space."""
        warp, group = ImageWarp(SE(3)), SE(3)
        g, h = (
            group.exp(torch.tensor(v, dtype=torch.float64))
            for v in ([0.3, -0.2, 0.5, 4, 2, -3], [0.1, 0, -0.4, 1, 5, 2])
        )
        volume = Volume(
            torch.zeros(1, 8, 9, 10).double(),
            oblique((2.0, 1.0, 3.0), (0.2, 0.1, -0.3), torch.tensor([-9.0, -4.0, -11.0])),
        )
        twice, once = warp(g, warp(h, volume)), warp(group.compose(g, h), volume)
        assert_relative(twice.affine, once.affine, 1e-12)
        volume.data[0, 3, 4, 5] = 1.0
        voxel = torch.tensor([[5.0, 4.0, 3.0, 1.0]], dtype=torch.float64)
        point = (voxel @ volume.affine.mT)[:, :3]
        where = PointCloud(group)(g, point)
        fine = Volume(torch.zeros(1, 41, 41, 41).double(), torch.eye(4).double())
        fine.affine[:3, 3] = where[0].round() - 20
        seen = warp(g, volume).resampled(fine).data[0]
        z, y, x = torch.meshgrid(*(torch.arange(41).double(),) * 3, indexing="ij")
        middle = torch.stack([(seen * axis).sum() / seen.sum() for axis in (x, y, z)]) + fine.affine[:3, 3]
        assert float((middle - where[0]).abs().max()) < 0.05

    @pytest.mark.parametrize("channels", [1, 3])
    def test_files(self, channels: int, tmp_path: Path) -> None:
        affine = oblique((2.0, 1.0, 3.0), (0.2, 0.1, -0.3), torch.tensor([-9.0, -4.0, -11.0]))
        volume = Volume(rand(channels, 4, 5, 6).float(), affine)
        volume.save(tmp_path / "volume.nii.gz")
        image = nibabel.load(tmp_path / "volume.nii.gz")
        assert image.shape == ((6, 5, 4) if channels == 1 else (6, 5, 4, 3))
        value = image.get_fdata()[4, 2, 1] if channels == 1 else image.get_fdata()[4, 2, 1, 2]
        assert value == pytest.approx(float(volume.data[-1, 1, 2, 4]))
        for source in (tmp_path / "volume.nii.gz", str(tmp_path / "volume.nii.gz"), image):
            again = Volume.load(source)
            assert again.data.equal(volume.data)
            assert_relative(again.affine, affine, 1e-6)

    def test_integers_of_files_have_their_scale(self) -> None:
        array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
        assert Volume.load(nibabel.Nifti1Image(array, np.eye(4))).data[0, 3, 2, 1] == 23.0

    def test_itk_reads_fixed_points_at_moving_ones(self) -> None:
        group = Affine(3)
        g = random_elements(group, 1, std=0.3, seed=2)[0]
        points = randn(5, 3)
        lps = points.new_tensor([-1.0, -1.0, 1.0])
        m = itk_matrix(group.homogeneous(g))
        back = (group.action()(g, points) * lps) @ m[:3, :3].mT + m[:3, 3]
        assert_relative(back * lps, points, 1e-10)

    def test_refusals(self, tmp_path: Path) -> None:
        good = Volume(torch.zeros(1, 2, 3, 4), torch.eye(4))
        with pytest.raises(ShapeError, match=r"volume: expected one, \[c, d, h, w\], got \[2, 1, 2, 3, 4\]"):
            Volume(torch.zeros(2, 1, 2, 3, 4), torch.eye(4).expand(2, 4, 4)).save(tmp_path / "x.nii")
        with pytest.raises(ShapeError, match=r"x.affine: expected \[4, 4\], got \[3, 4\]"):
            ImageWarp(SE(3)).check_data(good._replace(affine=torch.eye(4)[:3]))
        with pytest.raises(ShapeError, match=r"x.data: expected \[\*batch, c, d, h, w\], got \[2, 3, 4\]; see"):
            ImageWarp(SE(3)).check_data(good._replace(data=torch.zeros(2, 3, 4)))
        with pytest.raises(ConfigurationError, match="got a Volume"):
            ImageWarp(SE(2)).check_data(good)
        with pytest.raises(ConfigurationError, match="expected a Volume, got Tensor"):
            good.resampled(good.data)  # type: ignore[arg-type]
        with pytest.raises(DomainError, match="regular"):
            Volume(good.data, torch.zeros(4, 4)).resampled(good)
        for name in ("scan.png", "scan.nii.gz"):
            (tmp_path / name).write_bytes(b"no volume")
            with pytest.raises(ConfigurationError, match=rf"expected a file such as scan.nii.gz, got .*{name}"):
                Volume.load(tmp_path / name)
        for name in ("whole.nii", "whole.nii.gz"):
            Volume(torch.rand(1, 20, 20, 20), torch.eye(4)).save(tmp_path / name)
            (tmp_path / f"half_{name}").write_bytes((tmp_path / name).read_bytes()[:15000])
            with pytest.raises(ConfigurationError, match=rf"expected a whole file, got .*half_{name}"):
                Volume.load(tmp_path / f"half_{name}")
        with pytest.raises(ConfigurationError, match=r"path: expected a file such as scan.nii.gz, got .*scan.txt"):
            good.save(tmp_path / "scan.txt")
        with pytest.raises(ConfigurationError, match="expected an image of real numbers, got complex64"):
            Volume.load(nibabel.Nifti1Image(np.ones((2, 3, 4), dtype=np.complex64), np.eye(4)))
        with pytest.raises(ConfigurationError, match="expected a path or an image of nibabel, got ndarray"):
            Volume.load(np.zeros((2, 3, 4)))
