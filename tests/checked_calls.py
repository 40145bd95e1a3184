"""Calls of the library and the tasks with jaxtyping and beartype checking every signature, as a program.

It needs a process of its own, since what is checked must not have been imported before. `python -m tests.checked_calls`
says "checked" in the end.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from jaxtyping import TypeCheckError, install_import_hook
from scipy.io import savemat

# all but trivgeo.symmetry, whose annotations hold classes of SymPy that beartype does not take
PARTS = ("_numerics", "_random", "checks", "expressions", "groups", "actions", "pde", "sde", "generative", "inversion")
CHECKED = [f"trivgeo.{name}" for name in (*PARTS, "networks", "training", "geoopt")]

with install_import_hook([*CHECKED, "tasks"], "beartype.beartype"):
    import trivgeo.inversion
    from tasks.checkpoints import save_checkpoint
    from tasks.images.convnet import ConvNet
    from tasks.images.data import CleanTraining, ImageBatch
    from tasks.images.energies import ClassifierEnergy, PredictedClass, VAEEnergy, load_classifier
    from tasks.images.fid import FrechetDistance
    from tasks.images.mnist import BundledSample
    from tasks.images.pose import PoseNetwork
    from tasks.images.regulariser import AdversarialRegulariser
    from tasks.images.resnet import ResNet18
    from tasks.images.rotation import RotationPosterior, UniformRotation
    from tasks.images.testsets import AffNISTFiles, DrawnTest, HomNISTFiles, ImageProblems
    from tasks.images.training import ClassifierTraining, RegulariserTraining, VAETraining
    from tasks.images.transformations import (
        AffineRecipe,
        HomographyRecipe,
        NoTransformation,
        RandomTransformations,
        affine_noise,
        homography_noise,
    )
    from tasks.images.vae import VAE
    from tasks.inverters import ProposedInverter
    from tasks.learned import DistillationTraining, ScoreTraining, TrainedInverter
    from tasks.pde.burgers import BurgersEquation
    from tasks.pde.heat import HeatEquation
    from tasks.pde.kdv import KdVEquation
    from tasks.pde.training import Collocation, PhysicsInformedTraining, SolvedData, SupervisedTraining
    from tests.helpers import seeded
    from tests.inversion.learned.circle import shape, untrained
    from tests.inversion.test_every_inverter import METHODS, images, operators
    from tests.tasks.sample_runs import DIGITS, framed_digits
    from trivgeo.actions import ImageWarp, OperatorAction, OperatorInput
    from trivgeo.groups import SE, SL, Affine, BurgersSymmetry, HeatSymmetry, Heisenberg, Translation
    from trivgeo.inversion import (
        ITS,
        TIED,
        AmortizedInverter,
        GradientDescent,
        Inverter,
        KineticLangevin,
        LearnedInverter,
        LieLAC,
        ReverseDiffusionSearch,
        TestTimeEquivariant,
        calibrated_scale,
    )
    from trivgeo.inversion.energies import DomainDistance, FunctionEnergy, GaussianInitialEnergy
    from trivgeo.inversion.learned import consistency_loss
    from trivgeo.inversion.learned.score_files import describe
    from trivgeo.inversion.stages import (
        AddNoise,
        Descend,
        GroupElements,
        KeepLower,
        OrbitCurvature,
        ReverseDiffusion,
        Select,
        WarmStart,
        affine_levels,
    )
    from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, forward_noising, reverse_diffusion


def groups() -> None:
    """Group laws of several shapes of element and batch, and the action of a symmetry on jets."""
    generator = seeded(0)
    for group in (SL(2), Heisenberg(2), Translation(3), HeatSymmetry(0.1, scale=0.1), BurgersSymmetry()):
        for batch in ((), (3,), (2, 1, 3)):
            v = 0.3 * torch.randn(*batch, group.dim, generator=generator)
            g = group.exp(v)
            group.log(g), group.has_log(g), group.Ad(g), group.log_modular(g), group.retract(g, v), group.perturb(g, v)
            group.algebra.bracket(v, v), group.algebra.ad(v), group.left_jacobian(v)
    heat = calibrated_heat()
    action = heat.action()
    g = heat.exp(torch.randn(2, 6, generator=generator, dtype=torch.float64))
    jets = torch.rand(2, 7, 3, generator=generator, dtype=torch.float64)
    action(g, jets), action.is_valid(g, jets), action.jacobian(g, jets), action.log_abs_det_jacobian(g, jets)


def calibrated_heat() -> HeatSymmetry:
    return HeatSymmetry(0.1, scale=[0.02, 0.35, 0.003, 0.35, 0.02, 0.5])


def diffusion() -> None:
    """Noise, a score of an energy, and the way back."""
    heat, schedule = calibrated_heat(), GeometricSchedule(0.1, 1.0)
    score = EnergyScore(lambda e: e.square().sum(-1), NoiseKernel(heat, schedule, 5), 3)
    reverse_diffusion(heat, schedule, score, num_samples=4, steps=5, generator=seeded(0))
    forward_noising(heat, schedule, heat.identity(3), generator=seeded(0))


def inverters() -> None:
    """Every exported inverter, on images and on operator inputs where it takes both."""
    called: set[type[Inverter]] = set()

    def run(inverter: Inverter, x: object) -> None:
        called.add(type(inverter))
        result = inverter(x, generator=seeded(0))
        result.best(), result.best_energy(), result.has_usable

    # every step calls the same signatures
    few = {
        "TIED": lambda a, e: TIED(a, e, evaluations=20),
        "ReverseDiffusionSearch": lambda a, e: ReverseDiffusionSearch(a, e, GeometricSchedule(0.05, 0.7), 3, 2, 4),
        "LieLAC": lambda a, e: LieLAC(a, e, 2, 0.05, 3),
        "KineticLangevin": lambda a, e: KineticLangevin(a, e, 3, 0.05, 3),
        "GradientDescent": lambda a, e: GradientDescent(a, e, 2, 0.05, 3),
    }
    for make in (METHODS | few).values():
        for action, energy, x in (images(), operators()):
            run(make(action, energy), x)
    action, energy, x = images()
    warp = ImageWarp(Affine(2))
    schedule = GeometricSchedule(0.1, 1.0)
    for side in ("restored", "given"):
        run(ReverseDiffusionSearch(action, energy, schedule, 4, 2, 6, pruning=[(0.5, 3)], side=side), x)
    run(
        ReverseDiffusionSearch(action, energy, schedule, 4, 2, 6)
        .then(Descend(2))
        .replace(log_det=True, max_evaluations=5),
        x,
    )
    run(LieLAC(action, energy, 2, 0.05, 3, parametrization=GroupElements()), x)
    levels = affine_levels()
    run(ITS(warp, energy, levels, 6, 2, classes=lambda y: y.sum((1, 2, 3)).long(), criterion=OrbitCurvature()), x)
    score = untrained()
    circles = shape(torch.rand(5, generator=seeded(0)), 2)
    score.loss(circles, seeded(0)).backward()
    consistency_loss(score, untrained(1), circles, generator=seeded(0)).backward()
    turned = AmortizedInverter(score, lambda y: y.square().sum((1, 2)), num_hypotheses=6, steps=3)
    run(turned, circles)
    moves = KeepLower(AddNoise(steps=2, time=0.3), ReverseDiffusion(steps=2))
    for choice in ("lowest", "resample"):
        run(Inverter(turned.action, turned.energy, [WarmStart(turned), Select(3, choice), moves]), circles)
    plane = SE(2).action()
    cloud, transformations = (
        torch.rand(64, 4, 2, generator=seeded(0)),
        lambda n, g: SE(2).random(n, std=0.5, generator=g),
    )
    learned = LearnedInverter(plane).fit(cloud, transformations, steps=2, batch_size=8, progress=False)
    run(learned, cloud[:3])
    exported = {c for c in vars(trivgeo.inversion).values() if isinstance(c, type) and issubclass(c, Inverter)}
    assert called == exported, exported ^ called


def equivariance() -> None:
    """A calibrated basis, the energies of operator inputs, and predictions carried by what was found."""
    action = OperatorAction(calibrated_heat().action())
    x = torch.linspace(0, 6.28, 20, dtype=torch.float64)
    data = OperatorInput(torch.stack([x, 0 * x, torch.sin(2 * x)], -1)[None], torch.cartesian_prod(x[::19], x)[None])
    energy = DomainDistance((0.0, 6.28), (0.0, 6.28), (-1.0, 1.0))
    calibrated_scale(action, energy, data, num_samples=64, generator=seeded(0))
    waves = torch.sin(x + torch.rand(9, 1, generator=seeded(1), dtype=torch.float64))
    learned = GaussianInitialEnergy(DomainDistance((0.0, 6.28), (0.0, 6.28), fill=False), x, waves)
    for part in (energy, learned):
        inverter = ReverseDiffusionSearch(action, part, steps=3, num_hypotheses=4)
        for ensemble in ("best", "mean"):
            model = TestTimeEquivariant(predict, inverter, action.point_action, ensemble=ensemble)
            model(data, generator=seeded(0))


def predict(x: OperatorInput) -> torch.Tensor:
    return torch.cat([x.query, x.query[..., :1]], -1)


def operators_of_equations() -> None:
    """Solutions of every equation, and the losses of networks on them."""
    size = {"num_sensors": 9, "width": 4, "depth": 2}
    for equation in (HeatEquation(), BurgersEquation(points=32, steps=20), KdVEquation(points=32, steps=40)):
        equation.inputs(equation.held_out(2), 9, (5, 3))
        data = SolvedData(equation, 9, training_functions=5, functions=3, points=4, grid=(9, 5), cache=None)
        SupervisedTraining(equation, **size).losses(data.dataset[0])
    for equation in (HeatEquation(), BurgersEquation()):
        PhysicsInformedTraining(equation, **size).losses(Collocation(equation, 9, functions=2).dataset[0])


def drawn(transformations: RandomTransformations, count: int) -> ImageProblems:
    """Transformed digits of a test set, as one batch."""
    data = DrawnTest(transformations, BundledSample(), limit=count, batch_size=count)
    data.setup("test")
    (batch,) = data.test_dataloader()
    return batch


def digits(folder: Path) -> None:
    """Laws of transformations and sets of images, drawn or read."""
    recipes = (AffineRecipe(), HomographyRecipe(steps=3), NoTransformation(), UniformRotation())
    for recipe in (*recipes, affine_noise(0.05, 0.05), homography_noise(0.05, 0.05, 0.02)):
        drawn(recipe, 3)
    training = CleanTraining(BundledSample(), batch_size=4, validation=1996)
    training.setup("fit")
    for loader in (training.train_dataloader(), training.val_dataloader(), training.test_dataloader()):
        next(iter(loader))
    grey = np.random.default_rng(0).integers(0, 256, (5, 40, 40), dtype=np.uint8)
    labels = np.arange(5)[None]
    savemat(folder / "a.mat", {"affNISTdata": {"image": grey.reshape(5, -1).T, "label_int": labels}})
    savemat(folder / "h.mat", {"img_data": grey, "labels": labels})
    for data in (AffNISTFiles([str(folder / "a.mat")]), HomNISTFiles([str(folder / "h.mat")])):
        data.setup("test")
        next(iter(data.test_dataloader()))


def networks_of_images(folder: Path) -> None:
    """Networks, what is measured in their training, their files, and the energies that are made of them."""
    convnet, vae = ConvNet(DIGITS, [4, 4]), VAE(DIGITS, hidden=[8], latent=2)
    regulariser = AdversarialRegulariser(DIGITS, channels=[4], width=8)
    batch = drawn(AffineRecipe(), 4)
    clean = ImageBatch(batch.clean, batch.label)
    ClassifierTraining(partial(ConvNet, channels=[4, 4]), DIGITS).measure(clean, 0)
    VAETraining(partial(VAE, hidden=[8], latent=2), DIGITS).measure(clean, 0)
    RegulariserTraining(partial(AdversarialRegulariser, channels=[4]), DIGITS, affine_noise()).measure(clean, 0)
    networks = {"convnet": convnet, "resnet": ResNet18(DIGITS), "vae": vae, "regulariser": regulariser}
    files = {name: str(folder / f"{name}.safetensors") for name in networks}
    for name, network in networks.items():
        save_checkpoint(network.eval(), files[name], {})
    for source in (files["convnet"], files["resnet"]):
        load_classifier(source).energy(batch.image.unsqueeze(0))
        PredictedClass(source)(batch.image), ClassifierEnergy(source, "bfloat16")(batch.image)
    VAEEnergy(files["vae"], files["regulariser"])(batch.image), vae.features(batch.image[0])
    distance = FrechetDistance(vae)
    distance.add_reference(batch.clean), distance.add(batch.image), distance.compute()
    energy = ClassifierEnergy(files["convnet"])
    rotation = RotationPosterior(energy, GeometricSchedule(0.1, 3.0), angles=12, bins=4)
    rotation.binned(rotation.exact(batch.image)[0])


def learned_poses(folder: Path) -> None:
    """Training of a score of images and its distillation, and the inverters made of the files."""
    batch = drawn(AffineRecipe(), 3)
    clean = ImageBatch(batch.clean, batch.label)
    action, schedule = ImageWarp(Affine(2)), GeometricSchedule(0.1, 2.4)
    training = ScoreTraining(partial(PoseNetwork, channels=[4], width=8), DIGITS, action, schedule)
    training.measure(clean, 0)
    file = str(folder / "score.safetensors")
    save_checkpoint(training.network, file, {}, describe(training.score))
    DistillationTraining(file, action).measure(clean, 0)
    energy = FunctionEnergy(lambda x: x.square().sum((1, 2, 3)))
    proposals = partial(TrainedInverter, checkpoint=file, num_hypotheses=2, ranked=True)
    for inverter in (proposals(action, energy), ProposedInverter(action, energy, proposals, [Select()])):
        inverter(batch.image, generator=seeded(0))


def main() -> None:
    groups()
    diffusion()
    equivariance()
    inverters()
    operators_of_equations()
    with TemporaryDirectory() as folder:
        digits(Path(folder))
        networks_of_images(Path(folder))
        learned_poses(Path(folder))
    # that all this says something: wrong types are refused
    for wrong in (
        lambda: SL(2).algebra.ad(torch.zeros(3, dtype=torch.long)),
        lambda: framed_digits(torch.zeros(1, 28, 28)),
    ):
        try:
            wrong()
        except TypeCheckError:
            continue
        raise AssertionError("expected a TypeCheckError")
    sys.stdout.write("checked\n")


if __name__ == "__main__":
    main()
