"""Where is an object of which a scan shows a part, with a fifth of outliers? Two boxes, a random pose."""

import torch

from trivgeo.actions import PointCloud
from trivgeo.groups import SE, SO
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import GemanMcClure, LeastSquares, NearestPoints
from trivgeo.inversion.stages import LevenbergMarquardt, Select, WithEnergy

generator = torch.Generator().manual_seed(0)
faces = torch.rand(3000, 3, generator=generator, dtype=torch.float64) - 0.5
faces[torch.arange(3000), torch.arange(3000) % 3] = 0.5 * (-1.0) ** torch.arange(3000).double().div(3).floor()
boxes = torch.cat([faces[:2000] * torch.tensor([1.0, 0.6, 0.3]), faces[2000:] * 0.4 + torch.tensor([0.4, 0.3, 0.3])])
model = boxes - boxes.mean(0)
pose = SE(3).join(SO(3).random_haar(generator=generator, dtype=torch.float64), torch.tensor([3.0, -1.0, 2.0]))
shown = model[model[:, 2] > -0.15][torch.randperm(1500, generator=generator)[:200]]
shown[:40] = torch.rand(40, 3, generator=generator, dtype=torch.float64) - 0.5
scan = SE(3).action()(pose, shown + 0.003 * torch.randn(200, 3, generator=generator))

distances = NearestPoints(model, tangent=0.3)
wide, middle, narrow = (LeastSquares(distances, GemanMcClure(w), std=0.01) for w in (0.3, 0.1, 0.05))
search = WithEnergy(wide, Select(128), LevenbergMarquardt(5)), WithEnergy(middle, LevenbergMarquardt(5), Select(16))
starts = SE(3).join(SO(3).random_haar(1024, generator=generator, dtype=torch.float64), scan.mean(0))
found = Inverter(PointCloud(SE(3)), narrow, [*search, LevenbergMarquardt(20)])(scan[None], initial=starts[None]).best()
degrees = float(SO(3).distance(pose[:, :3], found[0, :, :3]).rad2deg())
shift = float((pose[:, 3] - found[0, :, 3]).norm())
print(f"off by {degrees:.2f} degrees and a shift of {shift:.4f}")
