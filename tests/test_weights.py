"""Weights that are not finite are refused by name wherever weights are read; so are headers that lack an entry."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.images.pose import PoseNetwork
from tests.inversion.learned.circle import Perceptron, untrained
from trivgeo.errors import CheckpointError
from trivgeo.features import HeadValidation, LearnedEnergy, NeighbourDistance, UprightHead
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.fitted import FittedPath
from trivgeo.generative.paths import DiffusionPath, FlowMatchingPath
from trivgeo.groups import SO, Torus
from trivgeo.inversion import LearnedInverter
from trivgeo.inversion.learned import Calibration
from trivgeo.inversion.learned.posterior_density import DensityFit
from trivgeo.networks import AllocationError, BoundedAllocation, check_destination, content_hash, read_file, write_file

Load = Callable[[Path], object]


def network(path: Path) -> Load:
    save_checkpoint(PoseNetwork(2, (1, 8, 8, 10), (4,), 8), path, {})
    return lambda path: load_checkpoint(PoseNetwork, str(path))


def backbone(path: Path) -> Load:
    write_file(Perceptron(4, 2, 8), path, {})
    return lambda path: read_file(path).fill(Perceptron(4, 2, 8))


def inverter(path: Path) -> Load:
    score = untrained()
    LearnedInverter.from_score(score, num_hypotheses=1).save(path)
    return lambda path: LearnedInverter.load(path, score.action, backbone=untrained().backbone)


def calibrated(path: Path) -> Load:
    """An inverter with a calibration."""
    score = untrained()
    whole = LearnedInverter.from_score(score, num_hypotheses=1)
    parts = {"restored": 5, "given": 5, "clean": 5, "error": 1}
    tensors = {f"{name}_mean": torch.zeros(n) for name, n in parts.items() if name != "error"}
    tensors |= {f"{name}_white": torch.eye(n) for name, n in parts.items()}
    tensors |= {"law_points": torch.zeros(9, 1), "law_white": torch.eye(1)}
    fit = DensityFit(1.5, (0.7,), (0.1,), 5, (0.8, 1.3))
    whole.calibration = Calibration(800, (0.5, 0.9), fit, 0.03, (1.0, 2.0, 3.0), (1.0, 2.0), tensors)
    whole.save(path)
    return lambda path: LearnedInverter.load(path, score.action, backbone=untrained().backbone)


def head(path: Path) -> Load:
    """A learned energy, of an upright head over another score."""
    layer = torch.nn.Linear(3, 3)
    score = UprightHead(3, 4, NeighbourDistance(2, 3, 1))
    LearnedEnergy(torch.nn.Sequential(layer), score=score, validation=HeadValidation(0.8, 0.1, 0.5, 64)).save(path)
    return lambda path: LearnedEnergy.load(path, torch.nn.Sequential(layer))


def flow(path: Path) -> Load:
    """A flow with a module of conditions and a base that was fitted."""
    model = GroupDiffusion(Torus(2), "flow", width=8, depth=1, condition=3, condition_dropout=0.1)
    base = FlowMatchingPath.fit_base(Torus(2), Torus(2).random(8))
    settings = {"speed": 1.5}
    model.networks.initialise((3,))
    model.fitted = FittedPath(FlowMatchingPath.build(Torus(2), settings, base), base, settings, (1,), (3,))
    model.save(path)
    return lambda path: GroupDiffusion.load(path, Torus(2))


def diffusion(path: Path) -> Load:
    model = GroupDiffusion(Torus(2), width=8, depth=1)
    base, settings = DiffusionPath.fit_base(Torus(2), Torus(2).random(8)), {"widest": 1.0}
    model.fitted = FittedPath(DiffusionPath.build(Torus(2), settings, base), base, settings)
    model.save(path)
    return lambda path: GroupDiffusion.load(path, Torus(2))


@pytest.mark.parametrize("make", [network, backbone, inverter, diffusion], ids=lambda make: make.__name__)
def test_files(make: Callable[[Path], Load], tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    load = make(path)
    load(path)
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert len(header.pop("checksum")) == 64

    def edit(tensors: dict[str, torch.Tensor], header: dict[str, str]) -> None:
        """As by somebody who knows the checksum."""
        save_file(tensors, path, metadata={**header, "checksum": content_hash(header, tensors)})

    for value in (torch.nan, torch.inf, -torch.inf):
        for name, whole in tensors.items():
            if whole.is_floating_point() and whole.numel():
                broken = whole.clone()
                broken.view(-1)[-1] = value
                edit({**tensors, name: broken}, header)
                with pytest.raises(CheckpointError, match=f"expected finite weights, got 1 .* in {name}"):
                    load(path)
    for key, text in header.items():
        entry = json.loads(text) if text.startswith("{") else {}
        broken_entries = [{k: v for k, v in entry.items() if k != left_out} for left_out in entry]
        if make is not network or key == "architecture":  # metadata are what somebody wrote
            for other in [*broken_entries, *({**entry, k: None} for k in entry)]:
                edit(tensors, {**header, key: json.dumps(other)})
                try:
                    load(path)
                except CheckpointError as error:
                    assert str(path) in str(error)  # noqa: PT017
    save_file(tensors, path)
    if make is not backbone:
        with pytest.raises(CheckpointError):
            load(path)


_LEFT = "group"  # a fingerprint says only whether two groups are one


def _changed(value: Any, new: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The object with another value in place of one number, for each number in it, and where that is."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            if key == _LEFT:
                continue
            for place, other in _changed(part, new, (*path, key)):
                copied = value.copy()
                copied[key] = other
                yield place, copied
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, new


@pytest.mark.parametrize("make", [network, calibrated, head, flow, diffusion], ids=lambda make: make.__name__)
def test_numbers_in_headers(make: Callable[[Path], Load], tmp_path: Path) -> None:
    """NaN is refused at each number by a message with the file; others are, or make an object that is whole."""
    path = tmp_path / "some.safetensors"
    load = make(path)
    load(path)
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    header.pop("checksum")
    places = 0
    for key, text in header.items():
        if not text.startswith("{") or key == "metadata":  # metadata are what somebody wrote
            continue
        for new in (math.nan, math.inf, -1, 0.5, "7", [], True):
            for place, entry in _changed(json.loads(text), new):
                changed = {**header, key: json.dumps(entry)}
                save_file(tensors, path, metadata={**changed, "checksum": content_hash(changed, tensors)})
                # thresholds may be infinite: all data are above, or none; a network may not read a number of its own
                is_free = place[0] in ("thresholds", "gate_threshold") or (
                    key == "architecture" and new in (-1, "7", [], True)
                )
                try:
                    load(path)
                except CheckpointError as error:
                    assert str(path) in str(error), (key, place, new)  # noqa: PT017
                else:
                    assert new == 0.5 or is_free, (key, place, new)
                places += 1
    assert places > 20


@pytest.mark.parametrize("make", [inverter, diffusion], ids=lambda make: make.__name__)
def test_a_model_without_its_checksum_is_damaged(make: Callable[[Path], Load], tmp_path: Path) -> None:
    """All that were ever saved have one: one bit of its name, and the file was taken for one of an older version."""
    path = tmp_path / "some.safetensors"
    load = make(path)
    path.write_bytes(path.read_bytes().replace(b'"checksum"', b'"bhecksum"'))
    with pytest.raises(CheckpointError, match="without its checksum"):
        load(path)


@pytest.mark.parametrize("entry", ["shape", "flow_map", "feature_shape"])
def test_headers_of_larger_models(entry: str, tmp_path: Path) -> None:
    """Refused before memory is taken: a header of a few bytes asked for gigabytes."""
    path = tmp_path / "some.safetensors"
    model = GroupDiffusion(Torus(2), width=8, depth=1, condition=torch.nn.Identity())
    base, settings = DiffusionPath.fit_base(Torus(2), Torus(2).random(8)), {"widest": 1.0}
    model.networks.initialise((3,))
    model.fitted = FittedPath(DiffusionPath.build(Torus(2), settings, base), base, settings, (1,), (3,))
    model.save(path)
    load = lambda: GroupDiffusion.load(path, Torus(2), condition=torch.nn.Identity())  # noqa: E731
    load()
    file = read_file(path)
    header = file.entry("trivgeo.GroupDiffusion")
    for large in (10**5, 10**9, 10**30):
        if entry == "feature_shape":
            changed = {**header, "condition": {**header["condition"], "feature_shape": [large]}}
        else:
            changed = {**header, "shape": [large, 1], "flow_map": entry == "flow_map"}
        text = {"trivgeo.GroupDiffusion": json.dumps(changed)}
        save_file(file.tensors, path, metadata={**text, "checksum": content_hash(text, file.tensors)})
        with pytest.raises(CheckpointError):
            load()
    deep = {"trivgeo.GroupDiffusion": json.dumps({**header, "shape": [8, 10**9]})}
    save_file(file.tensors, path, metadata={**deep, "checksum": content_hash(deep, file.tensors)})
    with pytest.raises(CheckpointError, match="that of a larger network"):
        load()


@pytest.mark.parametrize("speed", [-1.0, 0.0, math.nan, math.inf, "fast", None])
def test_headers_of_impossible_settings(speed: object, tmp_path: Path) -> None:
    """A speed below zero gave wrong samples and densities."""
    path = tmp_path / "some.safetensors"
    model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
    base, settings = FlowMatchingPath.fit_base(Torus(1), Torus(1).random(8)), {"speed": 1.0}
    model.fitted = FittedPath(FlowMatchingPath.build(Torus(1), settings, base), base, settings)
    model.save(path)
    GroupDiffusion.load(path, Torus(1))
    file = read_file(path)
    header = {**file.entry("trivgeo.GroupDiffusion"), "settings": {"speed": speed}}
    text = {"trivgeo.GroupDiffusion": json.dumps(header)}
    save_file(file.tensors, path, metadata={**text, "checksum": content_hash(text, file.tensors)})
    with pytest.raises(CheckpointError):
        GroupDiffusion.load(path, Torus(1))


def test_tied_weights_are_written(tmp_path: Path) -> None:
    """The file format refused them, after the training."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, c: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(c).relu())

    path, c = tmp_path / "some.safetensors", torch.randn(20, 3)
    model = GroupDiffusion(Torus(1), "flow", width=8, depth=1, condition=Tied())
    model.fit(Torus(1).random(20), c, steps=2, progress=False).save(path)
    again = GroupDiffusion.load(path, Torus(1), condition=Tied())
    drawn = [m.sample(20, condition=c, steps=2, generator=torch.Generator().manual_seed(0)) for m in (model, again)]
    assert torch.equal(*drawn)


def test_headers_of_larger_networks(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    load = network(path)
    file = read_file(path)
    architecture = json.dumps({**file.entry("architecture"), "width": 10**6})
    assert architecture != file.header["architecture"]
    save_file(file.tensors, path, metadata={**file.header, "architecture": architecture})
    with pytest.raises(CheckpointError, match="that of a larger network"):
        load(path)


def test_bounds_count_what_is_created() -> None:
    with BoundedAllocation(8000, 10):
        half = torch.zeros(500, dtype=torch.float64) + 1
        half.new_zeros(500)
    with pytest.raises(AllocationError, match="zeros"), BoundedAllocation(8000, 10):
        [torch.zeros(size, dtype=torch.float64) for size in (500, 501)]
    for create in (torch.empty, torch.ones, torch.rand, torch.randn):
        with pytest.raises(AllocationError), BoundedAllocation(2**30, 10):
            create(10**6, 10**6)  # of terabytes: there is no such tensor, not even for a moment
    with pytest.raises(AllocationError), BoundedAllocation(2**30, 10):
        torch.nn.Linear(10**6, 10**6)
    with pytest.raises(AllocationError), BoundedAllocation(2**30, 10):
        torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(6))
    generator = torch.Generator().manual_seed(0)
    with BoundedAllocation(2**20, 10):  # what is drawn is what is drawn without a bound
        drawn = torch.randn(3, generator=generator)
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(0)))


def test_one_bit(tmp_path: Path) -> None:
    """Of a weight, a setting or a shape: the file is refused, or holds what was written."""
    path = tmp_path / "some.safetensors"
    load = diffusion(path)
    whole, written = load(path), path.read_bytes()
    draw, refused = random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(written)
        damaged[draw.randrange(len(written))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            found = load(path)
        except CheckpointError:
            refused += 1
            continue
        assert found.fitted.settings == whole.fitted.settings
        assert all(map(torch.equal, found.state_dict().values(), whole.state_dict().values()))
    assert refused > 50


def test_groups_of_other_dimension(tmp_path: Path) -> None:
    load = diffusion(tmp_path / "some.safetensors")
    load(tmp_path / "some.safetensors")
    with pytest.raises(CheckpointError, match="another group"):
        GroupDiffusion.load(tmp_path / "some.safetensors", SO(3))


def test_a_header_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a module runs it: only those of this project are, and no class of another is taken unless imported."""
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "some.safetensors"
    for name in ("stranger.Network", "this.x", "..a.b", "a", "trivgeo.nothing.X", "torch.nn.Linear"):
        save_file({"a": torch.zeros(1)}, path, metadata={"network": name, "architecture": "{}"})
        with pytest.raises(CheckpointError, match="expected a network of class PoseNetwork"):
            load_checkpoint(PoseNetwork, str(path))
    assert not (tmp_path / "ran").exists()


def test_hostile_headers(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    network(path)
    name = read_file(path).header["network"]
    for architecture in ("[" * 100_000, f'{{"a": {"9" * 5000}}}', '{"kernels": 1e300}'):
        save_file({"a": torch.zeros(1)}, path, metadata={"network": name, "architecture": architecture})
        with pytest.raises(CheckpointError):
            load_checkpoint(PoseNetwork, str(path))
    save_file({"a": torch.zeros(4).to(torch.float8_e4m3fn)}, path)
    with pytest.raises(CheckpointError, match="expected tensors of the usual dtypes"):
        read_file(path)
    with pytest.raises(CheckpointError, match="there is none"):
        read_file("x" * 300)


def test_only_the_file_is_written(tmp_path: Path) -> None:
    """Somebody's model.tmp was lost."""
    (tmp_path / "model.tmp").write_text("mine")
    write_file(Perceptron(4, 2, 8), tmp_path / "model.safetensors", {})
    assert {file.name for file in tmp_path.iterdir()} == {"model.tmp", "model.safetensors"}
    assert (tmp_path / "model.tmp").read_text() == "mine"
    with pytest.raises(CheckpointError, match="expected a file, got a folder"):
        write_file(Perceptron(4, 2, 8), tmp_path, {})
    for place in ("model.tmp/model.safetensors", "a\0b.safetensors", "x" * 300):
        for write in (check_destination, lambda path: write_file(Perceptron(4, 2, 8), path, {})):
            with pytest.raises(CheckpointError, match="expected a file that can be written"):
                write(tmp_path / place)
