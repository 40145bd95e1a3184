"""Test of a classifier on transformed images, with and without inversion of the transformation."""

import math
import time
from collections.abc import Callable
from itertools import groupby, starmap
from typing import Any

import torch
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.inversion import Inverter, Stage, TestTimeEquivariant
from trivgeo.inversion.energies import DataEnergy, FramedEnergy
from trivgeo.sde import NoiseStreams

from ..inverters import finished
from ..results import ShardedTest
from ..summary import Row
from .energies import NetworkEnergy, load_classifier
from .fid import FrechetDistance, load_features
from .figures import draw_pairs
from .models import ImageClassifier, ImageNetwork
from .testsets import DrawnTest, ImageProblems


class ImageInversion(ShardedTest):
    """Accuracy of a classifier on transformed images: alone, with inversion, and on the images before.

    The images themselves do not change with the seed; the noise of the inverter does. A row keeps the element that was
    found, and what needs all images at once, the Fréchet distance and the figure, is made from the rows at the end:
    a run that was killed loses nothing. An image for which the inverter finds no element is classified as it is.

    Args:
        classifier: the network that is tested, see `tasks.images.energies.load_classifier`.
        action: action of the transformations on images.
        energy: an energy of images, low for clean ones; ``None`` for an inverter that needs none.
        inverter: makes the inverter from an action and an energy.
        finish: see `tasks.inverters.finished`.
        max_evaluations: see `trivgeo.inversion.Inverter`, also for the next.
        compiled: whether networks are compiled, which is of use on a GPU.
        log_det: whether the log-determinant of the action stays in the energy, see `trivgeo.inversion.Inverter`.
        frame_weight: weight of the frame term, see `trivgeo.inversion.energies.FramedEnergy`; ``None`` for none.
        features: see `tasks.images.fid.load_features`: the network in whose features the Fréchet distance of the
            restored images to the clean ones is measured; ``None`` for no distance.
        equivariance: measure how far the predictions for transformed and clean images are from each other, too; takes
            an inversion of the clean images.
        figure: file name of the picture in the results' directory; ``None`` for none.

    Raises:
        CheckpointError: a network is missing or does not fit.
        ConfigurationError: (at the start) a network is one of other images than those of the test, or the
            transformations of the test is one of another group than that of the action.
    """

    def __init__(
        self,
        classifier: str | ImageClassifier,
        action: ImageWarp,
        energy: NetworkEnergy | None,
        inverter: Callable[[ImageWarp, DataEnergy | None], Inverter],
        frame_weight: float | None = 1.0,
        features: str | None = None,
        equivariance: bool = False,
        figure: str | None = "figure.png",
        finish: Stage | None = None,
        max_evaluations: int | None = 8192,
        compiled: bool = False,
        log_det: bool = False,
    ) -> None:
        super().__init__()
        self.classifier = load_classifier(classifier)
        self.action = action
        self.energy = energy
        framed = energy if energy is None or frame_weight is None else FramedEnergy(energy, frame_weight)
        self.equivariant = TestTimeEquivariant(
            self.classifier, finished(inverter(action, framed), finish, max_evaluations, compiled, log_det)
        )
        self.features = None if features is None else load_features(features)
        self.equivariance = equivariance
        self.figure = figure

    def on_test_start(self) -> None:
        """Check that the networks know images like these, and the action transformations like these.

        Raises:
            ConfigurationError: one of them does not; the message names it.
        """
        super().on_test_start()
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        known, given = self.classifier.images, data.inputs
        if known.channels != given.channels or known.classes != given.classes:
            raise ConfigurationError(f"classifier: expected one of {given}, got one of {known}")
        for name, network in self.named_modules():
            if isinstance(network, ImageNetwork) and not network.takes(given):
                raise ConfigurationError(
                    f"{name}: expected a network of images {list(given.shape)}, as those of the test, got a "
                    f"{type(network).__name__} of images {list(network.images.shape)}: fit and test need the same frame"
                )
        group = self.action.group
        if isinstance(data, DrawnTest):
            own = data.transformations.group
            if own.element_shape != group.element_shape:
                raise ConfigurationError(
                    f"transformations: expected elements {list(group.element_shape)} of the action's group {group!r}, "
                    f"got {list(own.element_shape)} of {own!r} by {type(data.transformations).__name__}"
                )

    def test_step(self, batch: ImageProblems, index: int) -> None:
        """Invert one batch of images with the noise of its seed."""
        if not self.is_due(batch, index):
            return
        rows = self._invert(batch)
        for name in rows[0]["metrics"]:
            mean = sum(row["metrics"][name] for row in rows) / len(rows)
            self.log(name.replace(" ", "_"), mean, batch_size=len(rows), prog_bar=name == "accuracy with inversion")
        writer = self.writer
        if writer is not None:
            writer.write(rows, batch.number)

    def _invert(self, batch: ImageProblems) -> list[Row]:
        generator = NoiseStreams(batch.place.to(self.device), batch.seed)
        start = time.perf_counter()
        result = self.equivariant.inverter(batch.image, generator=generator)
        with torch.no_grad():
            logits = self.equivariant.predict(batch.image, result)
            if logits.is_cuda:
                torch.cuda.synchronize(logits.device)  # else the clock is read before the work is done
            seconds = (time.perf_counter() - start) / len(logits)
            logits_alone, logits_clean = self.classifier(batch.image), self.classifier(batch.clean.nan_to_num())
            logits = torch.where(result.has_usable.unsqueeze(1), logits, logits_alone)
            inverted, alone, clean = logits.argmax(-1), logits_alone.argmax(-1), logits_clean.argmax(-1)
            known = torch.isfinite(batch.clean).flatten(1).all(1)
        columns = {
            "accuracy with inversion": inverted == batch.label,
            "accuracy without inversion": alone == batch.label,
        }
        if bool(known.all()):
            columns["accuracy on clean images"] = clean == batch.label
            if bool(torch.isfinite(batch.element).all()):
                undone = self.classifier(self._undone(batch, batch.element)).argmax(-1)
                columns["accuracy with the true transformation"] = undone == batch.label
            if self.equivariance:
                unmoved = self.equivariant(batch.clean, generator=generator)
                columns["equivariance error"] = _total_variation(logits, unmoved)
                columns["equivariance error without inversion"] = _total_variation(logits_alone, logits_clean)
        correct = {name: column.tolist() for name, column in columns.items()}
        best, energy, failures = result.best(), result.best_energy(), result.num_masked_steps.sum(1)
        listed = zip(
            batch.place.tolist(),
            batch.label.tolist(),
            inverted.tolist(),
            alone.tolist(),
            energy.tolist(),
            failures.tolist(),
            best.tolist(),
            strict=True,
        )
        return [
            {
                "seed": batch.seed,
                "case": place,
                "metrics": {name: float(column[i]) for name, column in correct.items()},
                "label": label,
                "predicted": predicted,
                "predicted_alone": predicted_alone,
                "energy": e if math.isfinite(e) else None,
                "masked_steps": masked,
                "energy_evaluations": result.energy_evaluations,
                "gradient_evaluations": result.gradient_evaluations,
                "network_evaluations": result.network_evaluations,
                "seconds": seconds,
                "element": element,
            }
            for i, (place, label, predicted, predicted_alone, e, masked, element) in enumerate(listed)
        ]

    def on_test_epoch_end(self) -> None:
        """Figure, and Fréchet distances of a whole test, from the rows of all devices."""
        writer = self.writer
        if writer is None:
            return
        writer.gather(self.trainer)
        if self.trainer.global_rank != 0 or (self.features is None and self.figure is None):
            return
        rows: dict[tuple[int, int], Row] = {(row["seed"], row["case"]): row for row in writer.rows}
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        data.is_due = None  # pictures and distances are of all batches
        loader: Any = self.trainer.test_dataloaders
        if self.figure is not None:
            batch: ImageProblems = next(iter(loader))
            shown = [rows[batch.seed, place] for place in batch.place.tolist()]
            draw_pairs(writer.directory / self.figure, batch.image, self._restored(batch, shown).cpu(), shown)
        # distances of a part of the images are no estimate of those of all: they fall with the number
        if self.features is not None and all(starmap(writer.done, data.keys())):
            for name, of_seeds in self._distances(FrechetDistance(self.features), list(loader), rows).items():
                writer.add_metric(name, of_seeds)

    def _distances(
        self, distance: FrechetDistance, batches: list[ImageProblems], rows: dict[tuple[int, int], Row]
    ) -> dict[str, dict[int, float]]:
        """Fréchet distances to the clean images, of the restored images of every seed and of those given."""
        first = [batch for batch in batches if batch.seed == batches[0].seed]
        if not all(bool(torch.isfinite(batch.clean).all()) for batch in first):
            return {}  # published files hold no clean images
        distance = distance.to(self.device)
        for batch in first:
            distance.add_reference(batch.clean.to(self.device))
            distance.add(batch.image.to(self.device))
        names = {"FID without inversion": distance.compute()}
        if all(bool(torch.isfinite(batch.element).all()) for batch in first):
            distance.reset()
            for batch in first:
                distance.add(self._undone(batch, batch.element))
            names["FID with the true transformation"] = distance.compute()
        restored = {}
        for seed, group in groupby(batches, lambda batch: batch.seed):
            distance.reset()
            for batch in group:
                distance.add(self._restored(batch, [rows[seed, place] for place in batch.place.tolist()]))
            restored[seed] = distance.compute()
        return {"FID with inversion": restored} | {name: dict.fromkeys(restored, d) for name, d in names.items()}

    def _restored(self, batch: ImageProblems, rows: list[Row]) -> Tensor:
        """The images with the elements of the rows undone."""
        return self._undone(batch, torch.tensor([row["element"] for row in rows]))

    def _undone(self, batch: ImageProblems, elements: Tensor) -> Tensor:
        """The images with these elements undone; as they are where that is not possible."""
        image = batch.image.to(self.device)
        undone = self.action(self.action.group.inverse(elements.to(image)), image)
        return torch.where(torch.isfinite(undone).flatten(1).all(1).reshape(-1, 1, 1, 1), undone, image)


def _total_variation(logits: Tensor, other: Tensor) -> Tensor:
    """Half the sum of the absolute differences of the class probabilities, `[b]`."""
    return 0.5 * (logits.softmax(-1) - other.softmax(-1)).abs().sum(-1)
