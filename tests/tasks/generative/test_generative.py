"""Sources, baselines and the test of models of elements."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.cli import main
from tasks.generative.conditional import ClassMixture
from tasks.generative.models import KernelDensity, OneNormal, WrappedMixture
from tasks.generative.sources import (
    Checkerboard,
    ElementSource,
    RNATorsions,
    RotationEvolutions,
    RotationMixture,
    TimeEvolutions,
)
from tasks.sweep import Sweep
from tests.helpers import assert_relative, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO, SU, Torus

CONFIGS = Path(__file__).parents[3] / "tasks" / "configs" / "generative"


class TestSources:
    def test_rna(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = ["1abc\tG\t" + "\t".join(str(10.0 * i + k) for k in range(7)) for i in range(40)]
        path = tmp_path / "angles.tsv.gz"
        path.write_bytes(gzip.compress("\n".join(rows).encode()))
        monkeypatch.setenv("TRIVGEO_RNA", str(path))
        source = RNATorsions()
        train, test = source.split(3)
        assert train.shape == (36, 7)
        assert test.shape == (4, 7)
        both = torch.cat([train, test])
        first = both[both[:, 0].argsort()].rad2deg().remainder(360.0)
        assert sorted(first[:, 0].round().tolist()) == sorted((10.0 * i) % 360.0 for i in range(40))
        assert torch.equal(source.split(3).test, test)
        assert not torch.equal(source.split(4).test, test)
        monkeypatch.delenv("TRIVGEO_RNA")
        with pytest.raises(ConfigurationError, match="TRIVGEO_RNA"):
            RNATorsions()
        (tmp_path / "bad.tsv").write_text("1abc\tG\t1\t2\n")
        with pytest.raises(ConfigurationError, match="seven"):
            RNATorsions(str(tmp_path / "bad.tsv"))

    @pytest.mark.parametrize("source", [Checkerboard(4, 10, 10), RotationMixture(3, 0.3, 10, 10)], ids=["T2", "SO3"])
    def test_known_laws(self, source: Checkerboard | RotationMixture) -> None:
        """Mass one, and draws where the density is."""
        haar = source.group.random_haar(20_000, generator=seeded(0), dtype=torch.float64)
        density = source.log_density(haar).exp()
        assert float((density.mean() - 1.0).abs() / (density.std() / math.sqrt(len(haar)))) < 4.0
        g = source.draw(4000, seeded(1))
        assert torch.isfinite(source.log_density(g)).all()
        # E_p[1 / p] over the support is its volume
        inside = float((density > 0).double().mean())
        if inside < 0.9:
            assert float((-source.log_density(g)).exp().mean()) == pytest.approx(inside, rel=0.05)

    @pytest.mark.parametrize("system", ["oscillator", "ising"])
    def test_evolutions(self, system: str) -> None:
        """Unitary, of determinant one, and what the Hamiltonian says at first order in the time."""
        source = TimeEvolutions(4, system, time=1e-3, train=5, test=5)
        u = SU(4).to_complex(source.draw(5, seeded(0)))
        eye = torch.eye(4, dtype=u.dtype)
        assert float((u @ u.mH - eye).abs().max()) < 1e-10
        assert_relative(torch.linalg.det(u).real, torch.ones(5, dtype=torch.float64), 1e-9)
        h = 1j * (u - eye)
        assert float((h.real - h.real.mT).abs().max()) < 1e-5  # H is real and symmetric
        if system == "oscillator":
            assert float(h[:, 0, 2:].abs().max()) < 1e-5  # neighbours alone are coupled

    def test_rotations(self) -> None:
        g = RotationEvolutions(5, train=4, test=4).draw(4, seeded(0))
        assert float((SO(5).project(g) - g).abs().max()) < 1e-10

    def test_bad_input(self) -> None:
        with pytest.raises(ConfigurationError, match="power of 2"):
            TimeEvolutions(6, "ising")
        with pytest.raises(ConfigurationError, match="even"):
            Checkerboard(3)


class TestBaselines:
    @pytest.mark.parametrize("model", [WrappedMixture(3, 15), KernelDensity(20, [1.5, 3.0])], ids=["mixture", "kernel"])
    def test_on_a_torus(self, model: WrappedMixture | KernelDensity) -> None:
        """Mass one on a grid; the density of a distribution across the cut; samples of it."""
        group = Torus(2)
        train = torch.tensor([3.1, 1.0]) + 0.3 * torch.randn(500, 2, generator=seeded(0))
        model.fit(group, train, 0)
        angle = torch.arange(40) * (2.0 * math.pi / 40)
        grid = torch.cartesian_prod(angle, angle)
        assert float(model.log_prob(grid).exp().mean()) == pytest.approx(1.0, abs=1e-3)
        entropy = 2.0 * (0.5 + math.log(0.3 * math.sqrt(2.0 * math.pi)) - math.log(2.0 * math.pi))
        test = torch.tensor([3.1, 1.0]) + 0.3 * torch.randn(500, 2, generator=seeded(1))
        assert float(-model.log_prob(test).mean()) == pytest.approx(entropy, abs=0.2)
        samples = group.wrap(model.sample(500, seeded(2)) - torch.tensor([3.1, 1.0]))
        assert float(samples.std()) == pytest.approx(0.3, rel=0.3)

    def test_one_normal_law_of_few_directions(self) -> None:
        """In single precision the covariance of one direction of 63 is not even positive."""
        group, model = SU(8), OneNormal()
        direction = torch.randn(63, generator=seeded(0)) / 63**0.5
        model.fit(group, group.exp(0.5 * torch.randn(500, 1, generator=seeded(1)) * direction), 0)
        along = group.log(model.sample(500, seeded(2))) @ direction
        assert float(along.std()) == pytest.approx(0.5, rel=0.2)

    @pytest.mark.parametrize("group", [Torus(2), SO(3)], ids=repr)
    def test_one_normal_law_in_the_measure_of_the_others(self, group: SO | Torus) -> None:
        """A narrow one is the heat kernel."""
        train = group.exp(0.1 * torch.randn(1500, group.dim, generator=seeded(0)))
        found = []
        for model in (OneNormal(), KernelDensity(factors=[1.0])):
            model.fit(group, train, 0)
            found.append(float(model.log_prob(train[:100]).mean()))
        assert found[0] == pytest.approx(found[1], abs=0.5)

    def test_bad_groups(self) -> None:
        with pytest.raises(ConfigurationError, match="torus"):
            WrappedMixture().fit(SO(3), SO(3).identity(3), 0)
        with pytest.raises(ConfigurationError, match="heat kernel"):
            KernelDensity().fit(SO(4), SO(4).identity(30), 0)


@pytest.mark.parametrize("name", ["checkerboard_flow", "rotations_kernel", "so4_normal", "so4_diffusion"])
def test_task(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config runs at a small size, and writes its row and its picture."""
    monkeypatch.setattr("sys.argv", ["tasks"])
    lists = dict.fromkeys(("train", "test"), 60)
    config: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config["base"] = [str(CONFIGS / "base.yaml")]
    config["trainer"] = {"default_root_dir": str(tmp_path), "enable_progress_bar": False}
    arguments = config["model"]["init_args"]
    arguments["source"].setdefault("init_args", {}).update(lists)
    if name.endswith(("flow", "diffusion")):
        arguments["model"]["init_args"] |= {"steps": 3, "width": 8, "depth": 1}
    has_density = arguments.get("likelihoods") != 0
    arguments |= {"likelihoods": 5 if has_density else 0, "evaluations": 4}
    config["data"] = {"init_args": {"seeds": [0]}}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    main(["test", "--config", str(path)])
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert {"energy distance of samples", "MMD of training set"} <= set(metrics)
    assert ("energy distance of samples by random steps" in metrics) == name.endswith("diffusion")
    assert metrics["defect"]["mean"] < 1e-5
    if has_density:
        assert math.isfinite(metrics["test NLL"]["mean"])
        assert math.isfinite(metrics["test NLL of the true density"]["mean"])
        assert metrics["lost elements"]["mean"] == 0.0
    else:
        assert "test NLL" not in metrics
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_every_config_names_what_exists() -> None:
    files = sorted(CONFIGS.glob("*_*.yaml"))
    assert len(files) > 20
    for path in files:
        assert str(path.name) in path.read_text(), path
    assert issubclass(RotationMixture, ElementSource)


class TestClasses:
    def test_law(self) -> None:
        """Mass one by quadrature on the torus, and classes drawn as often as densities say."""
        source = ClassMixture(Torus(2), 3, 2, 0.5, train=20, test=3000)
        angle = torch.arange(60) * (2.0 * math.pi / 60)
        grid = torch.cartesian_prod(angle, angle)
        mass = source.log_densities(grid).exp().mean(0)
        assert_relative(mass, torch.ones(3, dtype=torch.float64), 1e-6)
        _, test = source.split(0)
        shares = source.log_densities(test.elements).softmax(-1)
        for k in range(3):  # calibrated: the mean probability of a class is its share
            error = shares[:, k] - (test.classes == k).double()
            assert abs(float(error.mean())) < 4.0 * float(error.std()) / math.sqrt(len(error))

    def test_task(self, tmp_path: Path) -> None:
        """Runs at a small size, given the config of the benchmark."""
        config: dict[str, Any] = yaml.safe_load((CONFIGS / "classes_flow.yaml").read_text())
        config["base"] = [str(CONFIGS.parent / "test.yaml")]
        config["trainer"] |= {"default_root_dir": str(tmp_path), "enable_progress_bar": False}
        arguments = config["model"]["init_args"]
        arguments |= {"steps": 3, "width": 8, "depth": 1, "tolerance": 0.1}
        arguments["source"]["init_args"] |= {"train": 50, "test": 8}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(config))
        main(["test", "--config", str(path)])
        metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
        assert metrics["marginal NLL of the true density"]["mean"] > metrics["test NLL of the true density"]["mean"]
        for name in ("excess NLL a dimension", "recognised, samples", "recognised, guided samples"):
            assert math.isfinite(metrics[name]["mean"])
        sweep = Sweep.read(str(CONFIGS / "classes_sweep.yaml"))
        assert (len(sweep.rows), len(sweep.columns)) == (3, 3)
