"""DeepONet for the heat equation: network, files, optimiser, training by the command line, committed checkpoints."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.cli import main
from tasks.pde.batches import CollocationBatch
from tasks.pde.deeponet import DeepONet, GatedMLP
from tasks.pde.domain import Domain, relative_l2
from tasks.pde.heat import HEAT_NU, HeatEquation, exact_solution, initial_condition
from tasks.pde.soap import SOAP
from tasks.pde.training import Collocation, PhysicsInformedTraining
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, ShapeError

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tasks" / "configs" / "heat"
CHECKPOINTS = ROOT / "tasks" / "checkpoints"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(dtype: torch.dtype = torch.float64, **kwargs: Any) -> DeepONet:
    return DeepONet(6, 8, 3, u_scale=2.0, generator=generator(), **kwargs).to(dtype)


def sample(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, dtype=dtype, generator=generator(seed))


class TestNetwork:
    def test_published_size(self) -> None:
        net = DeepONet()
        weights = [tuple(layer.weight.shape) for mlp in (net.branch, net.trunk) for layer in mlp.layers]
        assert weights == [(100, 200), *[(100, 100)] * 6, (100, 2), *[(100, 100)] * 6]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)])
    def test_shared_points_equal_expanded_points(self, batch: tuple[int, ...], dtype: torch.dtype) -> None:
        net = small(dtype)
        sensors, points = sample(*batch, 6, dtype=dtype), 5.0 * sample(7, 2, seed=2, dtype=dtype)
        shared = net(sensors, points)
        assert shared.shape == (*batch, 7)
        assert shared.dtype == dtype
        torch.testing.assert_close(shared, net(sensors, points.expand(*batch, 7, 2)))

    def test_batches_broadcast(self) -> None:
        net = small()
        sensors, points = sample(3, 1, 6), sample(4, 7, 2, seed=2)
        u = net(sensors, points)
        assert u.shape == (3, 4, 7)
        torch.testing.assert_close(u[2, 1], net(sensors[2, 0], points[1]))

    def test_harmonics_make_a_periodic_network(self) -> None:
        net = small(gated=True, harmonics=2, x_range=(1.0, 5.0))
        sensors, points = sample(3, 6), 5.0 * sample(7, 2, seed=2)
        shifted = points + torch.tensor([4.0, 0.0])
        torch.testing.assert_close(net(sensors, shifted), net(sensors, points))
        assert (net(sensors, points + torch.tensor([1.7, 0.0])) - net(sensors, points)).abs().max() > 1e-3

    def test_gates_mix_two_encodings(self) -> None:
        net = GatedMLP(3, 4, 3, generator=generator()).double()
        x = sample(5, 3)
        first, second = torch.tanh(net.encoders(x)).split(4, -1)
        h = x
        for layer in net.main.layers[:-1]:
            z = torch.tanh(layer(h))
            h = z * first + (1 - z) * second
        torch.testing.assert_close(net(x), net.main.layers[-1](h))

    def test_vmap(self) -> None:
        net = small()
        sensors, points = sample(3, 6), sample(3, 7, 2, seed=2)
        torch.testing.assert_close(torch.func.vmap(net)(sensors, points), net(sensors, points))

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("kind", [{}, {"gated": True, "harmonics": 3}])
    def test_jet_agrees_with_nested_autodiff(self, shared: bool, kind: dict) -> None:
        net = small(**kind)
        sensors = sample(3, 6)
        points = torch.tensor([6.0, 16.0]) * sample(*(() if shared else (3,)), 5, 2, seed=2)
        jet = net.forward_jet(sensors, points)

        def value(sensor: Tensor, point: Tensor) -> Tensor:
            return net(sensor, point[None])[0]

        def over(f):
            return torch.func.vmap(torch.func.vmap(f, in_dims=(None, 0)), in_dims=(0, None if shared else 0))

        first = torch.func.jacrev(value, argnums=1)
        gradient = over(first)(sensors, points)
        hessian = over(torch.func.jacrev(first, argnums=1))(sensors, points)
        torch.testing.assert_close(jet.value, net(sensors, points), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(jet.x, gradient[..., 0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(jet.t, gradient[..., 1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(jet.xx, hessian[..., 0, 0], rtol=1e-12, atol=1e-12)

    def test_jet_gradients(self) -> None:
        net = DeepONet(3, 4, 2, generator=generator()).double()
        sensors, points = sample(2, 3), sample(3, 2, seed=2)
        names = list(dict(net.named_parameters()))

        def jet(*parameters: Tensor) -> tuple[Tensor, ...]:
            state = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(_JetOf(net), {f"net.{k}": v for k, v in state.items()}, (sensors, points))

        assert torch.autograd.gradcheck(jet, tuple(p.detach().requires_grad_() for p in net.parameters()))

    @pytest.mark.parametrize(
        ("sensors", "points"),
        [((5,), (7, 2)), ((3, 5), (7, 2)), ((6,), (7, 3)), ((6,), (2,)), ((3, 6), (4, 7, 2)), ((), (7, 2))],
    )
    def test_wrong_shapes(self, sensors: tuple[int, ...], points: tuple[int, ...]) -> None:
        net = small()
        for method in (net.forward, net.forward_jet):
            with pytest.raises(ShapeError):
                method(torch.zeros(sensors, dtype=torch.float64), torch.zeros(points, dtype=torch.float64))

    @pytest.mark.parametrize(
        "kwargs",
        [{"num_sensors": 0}, {"width": 0}, {"depth": 0}, {"x_range": (1.0, 1.0)}, {"u_scale": 0.0}, {"harmonics": -1}],
    )
    def test_wrong_configuration(self, kwargs: dict) -> None:
        with pytest.raises(ConfigurationError):
            DeepONet(**kwargs)


class _JetOf(torch.nn.Module):
    def __init__(self, net: DeepONet) -> None:
        super().__init__()
        self.net = net

    def forward(self, sensors: Tensor, points: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.net.forward_jet(sensors, points))


class TestHeat:
    def test_exact_solution_solves_the_equation(self) -> None:
        amplitude, x, t = (3.0 * sample(20, seed=seed) for seed in (1, 2, 3))
        u_t = torch.func.vmap(torch.func.grad(exact_solution, argnums=2))(amplitude, x, t)
        u_xx = torch.func.vmap(torch.func.grad(torch.func.grad(exact_solution, argnums=1), argnums=1))(amplitude, x, t)
        torch.testing.assert_close(u_t, HEAT_NU * u_xx)
        torch.testing.assert_close(exact_solution(amplitude, x, torch.zeros_like(t)), initial_condition(amplitude, x))

    def test_grid(self) -> None:
        domain = HeatEquation().domain
        grid = domain.grid(3, 2, dtype=torch.float64)
        expected = [[0, 0], [0, 16], [math.pi, 0], [math.pi, 16], [2 * math.pi, 0], [2 * math.pi, 16]]
        torch.testing.assert_close(grid, torch.tensor(expected, dtype=torch.float64))
        assert domain.grid(256, 101).shape == (256 * 101, 2)
        assert domain.sensors(200, dtype=torch.float64)[-1] == 2 * math.pi

    def test_empty_domain(self) -> None:
        with pytest.raises(DomainError, match="t_min < t_max"):
            Domain(0.0, 1.0, 1.0, 1.0, -1.0, 1.0)


class TestFiles:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_round_trip(self, tmp_path: Path, dtype: torch.dtype) -> None:
        net, metadata = small(dtype), {"nu": 0.1, "domain": {"x_min": 0.0}, "seed": 3}
        save_checkpoint(net, tmp_path / "new" / "net.safetensors", metadata)
        loaded = load_checkpoint(DeepONet, str(tmp_path / "new" / "net.safetensors"))
        loaded, header = loaded.network, loaded.metadata
        assert header == metadata
        assert loaded.architecture == net.architecture
        assert not loaded.training
        sensors, points = sample(2, 6, dtype=dtype), sample(5, 2, seed=2, dtype=dtype)
        assert torch.equal(loaded(sensors, points), net(sensors, points))

    def test_metadata_must_be_plain(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="JSON"):
            save_checkpoint(small(), tmp_path / "net.safetensors", {"tensor": torch.zeros(1)})

    def test_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="missing"):
            load_checkpoint(DeepONet, str(tmp_path / "missing.safetensors"))
        (tmp_path / "text.safetensors").write_text("not a checkpoint")
        with pytest.raises(CheckpointError, match="readable safetensors"):
            load_checkpoint(DeepONet, str(tmp_path / "text.safetensors"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda tensors, header: tensors.pop("branch.layers.0.weight"), r"missing branch.layers.0.weight .*8, 6"),
            (lambda tensors, header: tensors.update(extra=torch.zeros(2)), r"unexpected extra .*2"),
            (lambda tensors, header: tensors.update(bias=torch.zeros(3)), r"bias: expected .*\[\].* got .*\[3\]"),
            (lambda tensors, header: tensors.update(bias=torch.zeros(())), r"got .*float32"),
            (lambda tensors, header: header.pop("architecture"), "expected 'architecture'"),
            (lambda tensors, header: header.pop("metadata"), "expected 'metadata'"),
            (lambda tensors, header: header.update({"metadata": "{"}), "as JSON"),
            (lambda tensors, header: header.update({"metadata": "[]"}), "object, got list"),
            (lambda tensors, header: header.update({"architecture": '{"layers": 3}'}), "is no DeepONet"),
        ],
    )
    def test_misfits(self, tmp_path: Path, change, message: str) -> None:
        net = small()
        save_checkpoint(net, tmp_path / "good.safetensors", {})
        tensors = load_file(tmp_path / "good.safetensors")
        header = {
            "network": "tasks.pde.deeponet.DeepONet",
            "architecture": json.dumps(net.architecture),
            "metadata": "{}",
        }
        change(tensors, header)
        save_file(tensors, tmp_path / "bad.safetensors", metadata=header)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(DeepONet, str(tmp_path / "bad.safetensors"))


class TestOptimiser:
    def test_rotating_the_problem_rotates_the_path(self) -> None:
        left, right = (torch.linalg.qr(sample(4, 4, seed=seed)).Q for seed in (1, 2))
        curvature, target = sample(5, 4, 4, seed=3) - 0.5, sample(5, seed=4)

        def path(left: Tensor, right: Tensor) -> Tensor:
            weight = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
            optimiser = SOAP([weight], 1e-2, precondition_frequency=3)
            steps = []
            for _ in range(20):
                optimiser.zero_grad()
                inner = left.mT @ weight @ right
                ((curvature * inner).sum(dim=(1, 2)) - target).pow(4).sum().backward()
                optimiser.step()
                steps.append((left.mT @ weight @ right).detach())
            return torch.stack(steps)

        identity = torch.eye(4, dtype=torch.float64)
        expected = path(identity, identity)
        assert expected[-1].norm() > 0.1
        torch.testing.assert_close(path(left, right), expected, rtol=1e-6, atol=1e-8)

    def test_first_step_moves_vectors_only_and_then_falls(self) -> None:
        weight, bias = torch.zeros(3, 2, requires_grad=True), torch.zeros(3, requires_grad=True)
        optimiser = SOAP([weight, bias], 0.05)
        inputs, outputs = sample(10, 2, dtype=torch.float32), sample(10, 3, seed=2, dtype=torch.float32)
        inputs = torch.cat((inputs, 1.0 - inputs))
        outputs = torch.cat((outputs, outputs + 2.0 * inputs[:10, :1]))

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = (inputs @ weight.mT + bias - outputs).square().mean()
            loss.backward()
            return loss

        first = optimiser.step(closure).item()
        assert not weight.any()
        assert bias.all()
        for _ in range(200):
            last = optimiser.step(closure).item()
        floor = torch.linalg.lstsq(torch.cat((inputs, torch.ones(20, 1)), dim=1), outputs)
        residual = outputs - torch.cat((inputs, torch.ones(20, 1)), dim=1) @ floor.solution
        assert last < residual.square().mean() + 1e-2 * first

    @pytest.mark.parametrize(
        "kwargs", [{"learning_rate": 0.0}, {"betas": (0.9, 1.0)}, {"precondition_frequency": 0}, {"eps": 0.0}]
    )
    def test_wrong_configuration(self, kwargs: dict) -> None:
        with pytest.raises(ConfigurationError):
            SOAP([torch.zeros(2, 2, requires_grad=True)], **kwargs)


class _Exact(torch.nn.Module):
    """Stands in for a network that knows the solution."""

    @staticmethod
    def amplitude(sensors: Tensor) -> Tensor:
        return sensors.square().mean(dim=-1, keepdim=True).mul(2.0 * 200 / 199).sqrt()

    def forward(self, sensors: Tensor, points: Tensor) -> Tensor:
        return exact_solution(self.amplitude(sensors), points[:, 0], points[:, 1])

    def forward_jet(self, sensors: Tensor, points: Tensor):
        class _Jet:
            value = self(sensors, points)
            x = 2.0 * self.amplitude(sensors) * torch.cos(2.0 * points[:, 0]) * torch.exp(-0.4 * points[:, 1])
            t, xx = -0.4 * value, -4.0 * value

        return _Jet


class TestTraining:
    def test_losses_vanish_at_the_solution(self) -> None:
        equation = HeatEquation(0.5, 5.0)
        module = PhysicsInformedTraining(equation)
        batch = CollocationBatch(*(tensor.double() for tensor in Collocation(equation, functions=4).dataset[0]))
        losses = module.double().losses(batch)
        assert losses.keys() == {"initial", "residual", "boundary"}
        assert all(loss > 1e-6 for _, loss in losses.values())
        module.network = _Exact()
        assert all(loss < 1e-10 for _, loss in module.losses(batch).values())

    def test_batches_depend_on_seed_and_index_alone(self) -> None:
        first, second = (Collocation(HeatEquation(), seed=1).dataset for _ in range(2))
        first[0]
        assert all(map(torch.equal, first[3], second[3]))
        assert not torch.equal(first[3].interior, first[4].interior)
        assert not torch.equal(first[3].interior, Collocation(HeatEquation(), seed=2).dataset[3].interior)

    @pytest.mark.parametrize(
        "kwargs", [{"functions": 0}, {"grid": (0, 5)}, {"boundary_points": -1}, {"time_power": 0.0}]
    )
    def test_wrong_configuration(self, kwargs: dict) -> None:
        with pytest.raises(ConfigurationError):
            Collocation(HeatEquation(), **kwargs)

    def test_fit_exports_and_resumes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["tasks"])
        monkeypatch.chdir(tmp_path)

        def run(subcommand: str, *extra: str) -> LightningCLI:
            settings = (
                f"--config={CONFIG / 'deeponet.yaml'}",
                "--trainer.max_epochs=2",
                "--trainer.log_every_n_steps=1",
                "--trainer.callbacks.init_args.save_top_k=-1",
                "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false",
                "--model.init_args.width=10",
                "--model.init_args.depth=3",
                "--data.init_args.interior_points=16",
                "--data.init_args.steps_per_epoch=3",
            )
            return main([subcommand, *settings, *extra])

        run("fit", "--model.init_args.export=straight.safetensors")
        first, last = (Path(f"runs/heat/deeponet/version_0/checkpoints/epoch={epoch}.ckpt") for epoch in (0, 1))
        run("fit", "--model.init_args.export=resumed.safetensors", f"--ckpt_path={first}")
        tested = run("test", f"--ckpt_path={last}").trainer.callback_metrics
        loaded = load_checkpoint(DeepONet, "straight.safetensors")
        straight, metadata = loaded.network, loaded.metadata
        loaded = load_checkpoint(DeepONet, "resumed.safetensors")
        resumed, _ = loaded.network, loaded.metadata
        assert straight.width == 10
        assert metadata["steps"] == 6
        assert metadata["nu"] == HEAT_NU
        assert Domain(**metadata["domain"]) == HeatEquation().domain
        assert metadata["validation"]["relative_l2"] == pytest.approx(tested["test/relative_l2"].item())
        for name, tensor in straight.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("name", "amplitudes", "domain", "bar"),
    [
        ("heat_deeponet", [1.0], HeatEquation().domain, 0.012),
        ("heat_deeponet_augmented", torch.linspace(0.5, 5.0, 10).tolist(), HeatEquation(0.5, 5.0).domain, 0.031),
    ],
)
def test_committed_checkpoint(name: str, amplitudes: list[float], domain: Domain, bar: float) -> None:
    loaded = load_checkpoint(DeepONet, str(CHECKPOINTS / f"{name}.safetensors"))
    net, metadata = loaded.network, loaded.metadata
    assert net.architecture["num_sensors"] == 200
    assert Domain(**metadata["domain"]) == domain
    amplitude = torch.tensor(amplitudes, dtype=torch.float64)[:, None]
    points = domain.grid(256, 101, dtype=torch.float64)
    u = net.double()(initial_condition(amplitude, domain.sensors(200, dtype=torch.float64)), points)
    error = relative_l2(u, exact_solution(amplitude, points[:, 0], points[:, 1]))
    assert error.mean() < bar
    assert error.mean().item() == pytest.approx(metadata["validation"]["relative_l2"], rel=0.2)
