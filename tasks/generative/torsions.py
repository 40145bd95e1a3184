"""The test of models of the torsion angles phi and psi of proteins, given the kind of the residue."""

import torch
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.generative.distributions import log_mass
from trivgeo.groups import Torus

from ..problems import Request
from ..seeds import generator_of
from .conditional import ClassModelTest, Labelled
from .figures import Panel, draw_panels
from .fitting import timed
from .models import ElementModel, KernelDensity, WrappedMixture
from .proteins import ANGLES, RESIDUE_KINDS, ProteinChains, Segment, residue_kinds, torsions

_EMBEDDING_DIM = 8  # features of a kind of residue


class TorsionTest(ClassModelTest):
    """A `GroupDiffusion` on T^2 given one of four kinds of residues, in chains that are held out.

    Beside it stand classical models, one for each kind: kernel densities, whose widths a tenth of the training angles
    chooses, and mixtures of wrapped normal distributions.

    Args:
        source: source of the chains.
        kind: see `GroupDiffusion`, also for `width` and `depth`.
        steps: see `GroupDiffusion.fit`, also for `seconds` and `batch_size`.
        tolerance: see `GroupDiffusion.log_prob`, also for `num_draws`.
        components: number of components of each mixture.
        figure: see `tasks.images.inversion.ImageInversion`; angles of each kind, held out and drawn from the model.
    """

    def __init__(
        self,
        source: ProteinChains,
        kind: str = "flow",
        steps: int = 3000,
        seconds: float = 400.0,
        width: int = 64,
        depth: int = 3,
        batch_size: int = 256,
        tolerance: float = 1e-3,
        num_draws: int = 1,
        components: int = 10,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__(kind, steps, seconds, width, depth, batch_size, tolerance, num_draws)
        self.source = source
        self.components = check_count("components", components)
        self.figure = figure

    def test_step(self, batch: Request, index: int) -> None:
        """Fit and test models on one split of the chains."""
        if not self.is_due(batch, index):
            return
        train, test = (labelled_torsions(segments) for segments in self.source.split(batch.seed))
        model, metrics = timed(lambda: self.fitted(Torus(2), train, (len(RESIDUE_KINDS), _EMBEDDING_DIM), batch.seed))
        found = {
            "the model": model.log_prob(
                test.elements, condition=test.classes, tolerance=self.tolerance, num_draws=self.num_draws
            ),
            "the model without the kind": model.log_prob(
                test.elements, tolerance=self.tolerance, num_draws=self.num_draws
            ),
            "kernel density": _each_kind(KernelDensity(), train, test, batch.seed),
            "wrapped normal mixture": _each_kind(WrappedMixture(self.components), train, test, batch.seed),
        }
        for name, haar in found.items():
            logs = haar - log_mass(Torus(2), "volume")  # for the measure of the two angles
            metrics[f"test NLL of {name}"] = -float(logs.double().mean())
            for number, kind in enumerate(RESIDUE_KINDS):
                of_kind = logs[test.classes == number]
                if len(of_kind):
                    metrics[f"test NLL of {name}, {kind}"] = -float(of_kind.double().mean())
        for number, kind in enumerate(RESIDUE_KINDS):
            metrics[f"held-out residues, {kind}"] = float((test.classes == number).sum())
        self.log("nll", metrics["test NLL of the model"], batch_size=1)
        if self.writer is not None:
            self.writer.write([{"seed": batch.seed, "case": 0, "metrics": metrics, "samples": len(test.classes)}])
            if self.figure is not None and index == 0:
                generator = generator_of(batch.seed, 1)
                drawn = model.sample(
                    len(test.classes), condition=test.classes, generator=generator, tolerance=self.tolerance
                )
                shown = [(kind, test.classes == number) for number, kind in enumerate(RESIDUE_KINDS)]
                panels = [Panel(kind, ANGLES, test.elements[k].rad2deg(), drawn[k].rad2deg()) for kind, k in shown]
                draw_panels(self.writer.directory / self.figure, panels, 180.0)


def labelled_torsions(segments: list[Segment]) -> Labelled:
    """Angles phi and psi of the residues of segments, elements of T^2 in radians, with their kinds."""
    long = [segment for segment in segments if len(segment.names) > 2]
    angles = torch.cat([torch.zeros(0, 2).double()] + [torsions(segment.atoms) for segment in long])
    kinds = torch.cat([torch.zeros(0, dtype=torch.int64)] + [residue_kinds(segment.names) for segment in long])
    return Labelled(angles.float(), kinds)


def _each_kind(model: ElementModel, train: Labelled, test: Labelled, seed: int) -> Tensor:
    """Log-densities of the test angles by a model that is fitted to each kind by itself, `[n]`."""
    logs = test.elements.new_zeros(len(test.classes))
    for number in test.classes.unique().tolist():
        model.fit(Torus(2), train.elements[train.classes == number], seed)
        logs[test.classes == number] = model.log_prob(test.elements[test.classes == number])
    return logs
