"""The test of models of protein backbones, chains of frames of different length."""

import time

import torch
from torch import Tensor

from trivgeo.checks import check_choice, check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion, fit_base_distribution
from trivgeo.generative.particles import pad_particles
from trivgeo.groups import SE
from trivgeo.sde.likelihood import HutchinsonDivergence

from ..frames.statistics import energy_distance, kolmogorov_smirnov
from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .chain_networks import ChainNetwork
from .figures import Panel, draw_panels
from .fitting import POSITION_KINDS, seeded_training, steps_of, timed, training_settings
from .proteins import (
    ANGLES,
    BOND,
    ProteinChains,
    Segment,
    atoms_of,
    chain_of,
    frames_of,
    mean_residue,
    relative_frames,
    torsions,
    windows,
)

_FRAGMENT = 7  # frames of a fragment
_BOND_TOLERANCE = 0.3  # error of the length of a valid bond, in angstroms
_CLASH_DISTANCE = 3.6  # distance of two CA atoms below which they clash, in angstroms
_CLASH_SEPARATION = 3  # residues along the chain, from which on two atoms can clash
_FRAME_GROUP = SE(3)


class BackboneTest(ShardedTest):
    """One model of relative frames of protein chains of any length in a range, against chains that are held out.

    Residues of samples have the mean shape of those of the training chains. Valid are chains whose bonds from residue
    to residue are within .3 angstroms of 1.329. Energy distances are between the positions of N, CA and C of seven
    residues in the frame of the first one. Beside the samples stand training chains, the level that a perfect model
    has, and chains of independent frames: each relative frame that of a random training residue. A mixture of normal
    distributions of independent frames has a likelihood.

    Args:
        source: source of the chains.
        kind: "diffusion" or "flow", see `GroupDiffusion`.
        shortest: frames of a chain.
        longest: frames of a chain.
        repeats: training chains of random length that begin at a residue.
        steps: see `GroupDiffusion.fit`, also for `seconds`, `batch_size` and `learning_rate`.
        samples: largest number of samples of each length in the test.
        evaluations: see `PoseTest`, also for `file`.
        likelihoods: held-out chains whose density is estimated; 0 for none.
        tolerance: see `GroupDiffusion.log_prob`.
        width: width of the `ChainNetwork`.
        components: number of components of the mixture of normal distributions.
        figure: see `tasks.images.inversion.ImageInversion`; torsion angles of the middle residues of chains of each
            length.

    Raises:
        ConfigurationError: a number is out of range, or the kind is no such; in the test: the chains hold fewer than
            two runs of a length.
    """

    gains = ("valid",)

    def __init__(
        self,
        source: ProteinChains,
        kind: str = "flow",
        shortest: int = 8,
        longest: int = 32,
        repeats: int = 4,
        steps: int = 4500,
        seconds: float = 900.0,
        batch_size: int = 64,
        learning_rate: float = 2e-3,
        samples: int = 600,
        evaluations: int = 60,
        likelihoods: int = 64,
        tolerance: float = 1e-2,
        width: int = 96,
        components: int = 50,
        file: str | None = None,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        self.source, self.kind, self.file = source, check_choice("kind", kind, POSITION_KINDS), file
        self.figure = figure
        self.shortest, self.longest = check_count("shortest", shortest, 3), check_count("longest", longest, _FRAGMENT)
        if not shortest <= longest:
            raise ConfigurationError(f"longest: expected {shortest} or more, got {longest}")
        self.repeats, self.samples = check_count("repeats", repeats), check_count("samples", samples, 2)
        self.training_settings = training_settings(steps, seconds, batch_size, learning_rate=learning_rate)
        self.evaluations = check_count("evaluations", evaluations, 2)
        self.likelihoods = check_count("likelihoods", likelihoods, 0)
        self.tolerance = check_positive("tolerance", tolerance)
        self.width, self.components = check_count("width", width), check_count("components", components)
        self.group = SE(3) ** (longest - 1)

    def test_step(self, batch: Request, index: int) -> None:
        """Train and test one model on one split of the chains."""
        if not self.is_due(batch, index):
            return
        train, test = self.source.split(batch.seed)
        runs = self._runs(train, test)
        generator = generator_of(batch.seed, 1)
        residue = mean_residue(torch.cat([segment.atoms for segment in train]))
        chains = self._chains(train, self.repeats, generator)
        model, costs = timed(lambda: self._fitted(chains, residue, batch.seed))
        metrics = costs | {
            "training residues": float(sum(len(segment.names) for segment in train)),
            "held-out residues": float(sum(len(segment.names) for segment in test)),
        }
        if self.file is not None:
            model.save(self.file)
        single, panels = relative_frames(windows(train, 2))[:, 0], []
        for length, (held, known) in runs.items():
            number = min(self.samples, len(held), len(known))
            drawn = {
                "samples": self._drawn(model, number, length, generator),
                "training chains": _chosen(known, number, generator),
                "independent frames": chain_of(
                    single[torch.randint(len(single), (number, length - 1), generator=generator)]
                ),
            }
            reference = _chosen(held, number, generator)
            for name, frames in drawn.items():
                metrics |= {
                    f"{metric}, {length} frames, {name}": value
                    for metric, value in self._measures(frames, reference, residue).items()
                }
            shown = (_middle(torsions(atoms_of(x, residue))).rad2deg() for x in (reference, drawn["samples"]))
            panels.append(Panel(f"{length} frames", ANGLES, *shown))
        if self.likelihoods:
            metrics |= self._likelihoods(model, single.float(), self._chains(test, 1, generator))
        self.log("valid", metrics[f"valid chains, {_FRAGMENT} frames, samples"], batch_size=1)
        if self.writer is not None:
            self.writer.write([{"seed": batch.seed, "case": 0, "metrics": metrics, "samples": self.samples}])
            if self.figure is not None and index == 0:
                draw_panels(self.writer.directory / self.figure, panels, 180.0)

    def _runs(self, train: list[Segment], test: list[Segment]) -> dict[int, tuple[Tensor, Tensor]]:
        """All runs of frames of the lengths in the test, held out and for training, at least two of each."""
        lengths = sorted({_FRAGMENT, self.shortest, (self.shortest + self.longest) // 2, self.longest})
        runs = {length: (windows(test, length), windows(train, length)) for length in lengths}
        for length, (held, known) in runs.items():
            if min(len(held), len(known)) < 2:
                raise ConfigurationError(
                    f"longest: expected two runs of {length} residues held out, and two for training, got {len(held)} "
                    f"and {len(known)}"
                )
        return runs

    def _chains(self, segments: list[Segment], repeats: int, generator: torch.Generator) -> list[Tensor]:
        """Draw ``repeats`` runs of frames of random length from each residue that is far enough from the end."""
        found = []
        for segment in segments:
            frames = frames_of(segment.atoms)
            for start in range(len(frames) - self.shortest + 1):
                lengths = torch.randint(self.shortest, self.longest + 1, (repeats,), generator=generator).tolist()
                found += [frames[start : start + length] for length in lengths]
        return found

    def _fitted(self, chains: list[Tensor], residue: Tensor, seed: int) -> GroupDiffusion:
        """Fit a model of relative frames of chains whose residues have the shape ``residue``, see `ChainNetwork`."""
        with seeded_training(seed):
            network = ChainNetwork(residue, self.width)
            model = GroupDiffusion(self.group, self.kind, seed, network=network).to(self.device)
            elements, mask = pad_particles(self.group, [relative_frames(x).float() for x in chains])
            return model.fit((elements, None, mask), **self.training_settings)

    def _drawn(self, model: GroupDiffusion, number: int, length: int, generator: torch.Generator) -> Tensor:
        """Draw chains from a model, `[number, length, 3, 4]`."""
        mask = torch.arange(self.longest - 1) < length - 1
        steps = steps_of(model, self.evaluations)
        found = model.sample(number, mask=mask, generator=generator, steps=steps).cpu().double()
        return chain_of(found.unflatten(-1, (-1, 3, 4))[:, : length - 1])

    def _measures(self, frames: Tensor, held: Tensor, residue: Tensor) -> dict[str, float]:
        """Metrics of generated chains against as many held-out ones; ``residue`` is the shape of one."""
        length = held.shape[1]
        lost = ~torch.isfinite(frames.flatten(1)).all(-1)
        frames = frames[~lost]
        atoms, true = (atoms_of(x, residue) for x in (frames, held))
        bonds = (atoms[:, 1:, 0] - atoms[:, :-1, 2]).norm(dim=-1)
        valid = (bonds - BOND).abs() < _BOND_TOLERANCE
        centres = atoms[:, :, 1]
        far = torch.ones(length, length).triu(_CLASH_SEPARATION).bool()
        metrics = {
            "valid chains": float(valid.all(-1).double().sum()) / len(lost),
            "valid bonds": float(valid.double().mean()),
            "clashes": float((torch.cdist(centres, centres)[:, far] < _CLASH_DISTANCE).any(-1).double().mean()),
            "end to end": kolmogorov_smirnov(_ends(atoms), _ends(true)),
            "Ramachandran": energy_distance(_waves(torsions(atoms)), _waves(torsions(true))),
            "lost samples": float(lost.sum()),
        }
        if length == _FRAGMENT:
            metrics["energy distance"] = energy_distance(_positions(frames, atoms), _positions(held, true))
        return metrics

    def _likelihoods(self, model: GroupDiffusion, single: Tensor, chains: list[Tensor]) -> dict[str, float]:
        """Negative log-likelihoods of held-out chains for each relative frame, of the model and of a mixture."""
        order = torch.randperm(len(chains), generator=generator_of(0, 2)).tolist()[: self.likelihoods]
        relative = [relative_frames(chains[i]).float() for i in order]
        elements, mask = pad_particles(self.group, relative)
        start = time.perf_counter()
        logs = model.log_prob(elements, mask=mask, tolerance=self.tolerance, divergence=HutchinsonDivergence())
        mixture = fit_base_distribution(_FRAME_GROUP, single, num_components=self.components)
        independent = mixture.log_prob(torch.cat(relative))
        number = int(mask.sum())
        return {
            "NLL a residue, samples": -float(logs.double().sum()) / number,
            "NLL a residue, mixture of independent frames": -float(independent.double().sum()) / number,
            "chains with likelihoods": float(len(order)),
            "seconds of likelihoods": time.perf_counter() - start,
        }


def _chosen(chains: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw ``number`` of the chains."""
    return chains[torch.randperm(len(chains), generator=generator)[:number]]


def _ends(atoms: Tensor) -> Tensor:
    """Distances of the first CA from the last one."""
    return (atoms[:, 0, 1] - atoms[:, -1, 1]).norm(dim=-1)


def _waves(angles: Tensor) -> Tensor:
    """Cosines and sines of the angles of the middle residue of each chain."""
    middle = _middle(angles)
    return torch.cat([middle.cos(), middle.sin()], -1)


def _middle(angles: Tensor) -> Tensor:
    """Angles of the middle residue of each chain, `[b, 2]`."""
    return angles[:, angles.shape[1] // 2]


def _positions(frames: Tensor, atoms: Tensor) -> Tensor:
    """Coordinates of all atoms with respect to the first frame, `[b, 9 n]`."""
    return ((atoms - frames[:, :1, None, :, 3]) @ frames[:, :1, :, :3]).flatten(1)
