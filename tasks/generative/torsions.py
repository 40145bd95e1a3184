"""The test of models of the torsion angles phi and psi of proteins, given the kind of the residue."""

import time

import torch
from torch import Tensor, nn

from trivgeo.checks import check_count, check_positive
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import Torus

from ..problems import Request
from ..results import ShardedTest
from .conditional import Labelled
from .models import ElementModel, KernelDensity, WrappedMixture
from .proteins import RESIDUE_KINDS, ProteinChains, Segment, residue_kinds, torsions

_EMBEDDING = 8  # features of a kind


class TorsionTest(ShardedTest):
    """A `GroupDiffusion` on T^2 given one of four kinds of residues, in chains that are held out.

    Beside it stand classical models, one for each kind: kernel densities, whose widths a tenth of the training angles
    chooses, and mixtures of wrapped normal distributions.

    Args:
        source: of the chains.
        kind: see `GroupDiffusion`, also for `width` and `depth`.
        steps: see `GroupDiffusion.fit`, also for `seconds` and `batch_size`.
        tolerance: see `GroupDiffusion.log_prob`, also for `num_draws`.
        components: of each mixture.
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
    ) -> None:
        super().__init__()
        self.source, self.kind = source, kind
        self.steps, self.seconds = check_count("steps", steps), check_positive("seconds", seconds)
        self.width, self.depth, self.batch_size = width, depth, check_count("batch_size", batch_size)
        self.tolerance, self.num_draws = check_positive("tolerance", tolerance), check_count("num_draws", num_draws)
        self.components = check_count("components", components)

    def test_step(self, batch: Request, index: int) -> None:
        """One split."""
        if not self.is_due(batch, index):
            return
        train, test = (labelled_torsions(segments) for segments in self.source.split(batch.seed))
        start = time.perf_counter()
        model = self._fitted(train, batch.seed)
        metrics = {"seconds of training": time.perf_counter() - start}
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
        for name, logs in found.items():
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

    def _fitted(self, train: Labelled, seed: int) -> GroupDiffusion:
        """A model of angles given the kinds of residues."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(seed)
            embedding = nn.Embedding(len(RESIDUE_KINDS), _EMBEDDING)
            model = GroupDiffusion(Torus(2), self.kind, seed, condition=embedding, width=self.width, depth=self.depth)
            return model.to(self.device).fit(
                train.elements, train.classes, steps=self.steps, seconds=self.seconds, batch_size=self.batch_size
            )


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
