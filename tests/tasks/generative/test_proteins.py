"""Frames and torsion angles of protein backbones, from a chain that is built atom by atom, and small runs."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from tasks.cli import main
from tasks.generative.backbones import BackboneTest
from tasks.generative.chain_networks import ChainNetwork
from tasks.generative.proteins import (
    BOND,
    ProteinChains,
    Segment,
    atoms_of,
    chain_of,
    dihedral,
    frames_of,
    mean_residue,
    read_segments,
    relative_frames,
    residue_kinds,
    torsions,
    windows,
)
from tasks.generative.torsions import TorsionTest
from tasks.problems import Request
from tests.helpers import assert_relative, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE
from trivgeo.sde import trivialized_grad

CONFIGS = Path(__file__).parents[3] / "tasks" / "configs" / "generative"
NAMES = ("ALA", "GLY", "SER", "PRO", "LEU")


def placed(a: Tensor, b: Tensor, c: Tensor, length: float, angle: float, turn: float) -> Tensor:
    """The atom after a, b and c, by its distance from c, the angle at c and the torsion angle."""
    axis = (c - b) / (c - b).norm()
    normal = torch.linalg.cross(b - a, axis)
    normal = normal / normal.norm()
    away = math.cos(turn) * torch.linalg.cross(normal, axis) + math.sin(turn) * normal
    return c + length * (math.sin(angle) * away - math.cos(angle) * axis)


def built(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Atoms `[count, 3, 3]` of a chain with random angles, and these, phi and psi `[count, 2]`."""
    angles = 2.0 * math.pi * torch.rand(count, 2, generator=seeded(seed), dtype=torch.float64) - math.pi
    bend = math.radians(111.0)
    third = [1.458 - 1.525 * math.cos(bend), 1.525 * math.sin(bend), 0.0]
    start = [[0.0, 0.0, 0.0], [1.458, 0.0, 0.0], third]
    atoms = list(torch.tensor(start, dtype=torch.float64))
    for i in range(1, count):
        atoms.append(placed(*atoms[-3:], BOND, math.radians(116.6), float(angles[i - 1, 1])))
        atoms.append(placed(*atoms[-3:], 1.458, math.radians(121.7), math.pi))
        atoms.append(placed(*atoms[-3:], 1.525, bend, float(angles[i, 0])))
    return torch.stack(atoms).unflatten(0, (count, 3)), angles


def pdb_text(atoms: Tensor, first: int = 1) -> str:
    """The chain in PDB format; the names of residues repeat."""
    lines = ["HEADER    TEST"]
    for i, residue in enumerate(atoms.tolist()):
        for name, (x, y, z) in zip(("N", "CA", "C"), residue, strict=True):
            lines.append(
                f"ATOM  {3 * i + 1:5d}  {name:<3s} {NAMES[i % 5]} A{first + i:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00"
            )
    return "\n".join([*lines, "TER", "ENDMDL", lines[1].replace(" N  ", " CA ")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four chains, one of them with a gap, one compressed."""
    found = tmp_path_factory.mktemp("chains")
    (found / "1abcA.pdb").write_text(pdb_text(built(12, 0)[0]))
    with_gap = built(14, 1)[0]
    with_gap[7:] += 30.0
    (found / "2abcA.pdb.gz").write_bytes(gzip.compress(pdb_text(with_gap).encode()))
    (found / "3abcB.pdb").write_text(pdb_text(built(11, 2)[0]))
    (found / "4abcA.pdb").write_text(pdb_text(built(90, 6)[0]))
    (found / "3abcB.pdb.dssp").write_text("no chain")
    return found


def test_torsion_angles_are_those_of_the_construction() -> None:
    atoms, angles = built(9, 3)
    assert_relative(torsions(atoms), angles[1:-1], 1e-9)
    assert float(dihedral(*torch.tensor([[0.0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0]])).abs()) < 1e-6  # cis
    (segment,) = read_segments(pdb_text(atoms))
    assert_relative(torsions(segment.atoms), angles[1:-1], 5e-3)  # three decimals


def test_frames_rebuild_the_atoms() -> None:
    """And relative frames the chain, up to a motion of the whole, which leaves them as they are."""
    atoms = built(9, 4)[0]
    frames = frames_of(atoms)
    assert_relative(atoms_of(frames, mean_residue(atoms)), atoms, 1e-9)
    relative = relative_frames(frames)
    motion = SE(3).random(1, generator=seeded(5), dtype=torch.float64)
    assert_relative(relative_frames(SE(3).compose(motion, frames)), relative, 1e-9)
    assert_relative(SE(3).compose(frames[:1], chain_of(relative)), frames, 1e-9)


def test_gaps_and_kinds(folder: Path) -> None:
    source = ProteinChains(str(folder), test=0.4)
    assert [[len(s.names) for s in chain] for chain in source.chains] == [[12], [7, 7], [11], [90]]
    names = source.chains[0][0].names
    # ALA GLY SER PRO LEU ALA GLY SER PRO LEU ALA GLY without its ends
    assert residue_kinds(names).tolist() == [1, 3, 2, 0, 0, 1, 3, 2, 0, 0]
    train, test = source.split(0)
    assert sum(len(s.names) for s in train + test) == 127
    assert windows(source.chains[1], 5).shape == (6, 5, 3, 4)
    assert_relative(windows(source.chains[0], 5)[2], frames_of(source.chains[0][0].atoms)[2:7], 1e-12)


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "two protein chains"), ({"1abcA.pdb": "ATOM      1  N   ALA A   1         one     two"}, "in PDB format")],
)
def test_bad_folders(tmp_path: Path, content: dict[str, str], message: str) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        ProteinChains(str(tmp_path))
    with pytest.raises(ConfigurationError, match="expected a folder of protein chains"):
        ProteinChains(str(tmp_path / "none"))


def test_network_contains_gradients_of_distances() -> None:
    """Where only the coefficients of a distance, or of an entry, are predicted, it is the gradient of that."""
    residue = mean_residue(built(6, 0)[0])
    network = ChainNetwork(residue, width=8).double()
    g = SE(3).random(4, generator=seeded(1), dtype=torch.float64)
    level, present = torch.full((4,), 0.4, dtype=torch.float64), torch.ones(4, 1, dtype=torch.bool)

    def distance(h: Tensor) -> Tensor:  # from C of the residue before to N of this one
        between = residue[2] - (h[..., :3] @ residue[0].unsqueeze(-1)).squeeze(-1) - h[..., 3]
        return (between.square().sum(-1) + 1e-4).sqrt()

    for number, function in ((6 + 0 * 3 + 2, distance), (6 + 9 + 7, lambda h: h[..., 1, 3])):
        network.last.bias.data.zero_()[number] = 1.0
        found = network(g.flatten(1), level, None, present)
        assert_relative(found, trivialized_grad(SE(3), function, g), 1e-6)


def test_absent_frames_have_no_influence() -> None:
    network = ChainNetwork(mean_residue(built(6, 0)[0]), width=8)
    for layer in (network.last, *(block.outer for block in network.blocks)):
        torch.nn.init.normal_(layer.weight, generator=seeded(0))
    group = SE(3) ** 5
    g, level = group.random(3, generator=seeded(1)), torch.tensor([0.1, 0.5, 0.9])
    mask = torch.tensor([1, 1, 1, 0, 0]).bool().expand(3, 5)
    other = group.random(3, generator=seeded(2))
    changed = torch.cat([g[:, :36], other[:, 36:]], -1)
    found = [network(x, level, None, mask)[:, :18] for x in (g, changed)]
    assert torch.equal(*found)
    short = network(g[:, :36], level, None, mask[:, :3])
    assert_relative(short, found[0], 1e-5)


def test_held_out_residues_have_no_influence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the residues of samples is the mean of the training chains alone."""
    source = ProteinChains(str(folder), test=0.25)
    train, held = source.split(0)
    monkeypatch.setattr(source, "split", lambda seed: (train, [Segment(s.names, 1.1 * s.atoms) for s in held]))
    test, seen = BackboneTest(source, shortest=3, longest=7), []

    def fitted(chains: list[Tensor], residue: Tensor, seed: int) -> None:
        seen.append(residue)
        raise InterruptedError

    monkeypatch.setattr(test, "_fitted", fitted)
    monkeypatch.setattr(test, "is_due", lambda batch, index: True)
    with pytest.raises(InterruptedError):
        test.test_step(Request(0, 1), 0)
    shape = [math.dist(a, b) for s in train for a, b in zip(*(s.atoms[:, k].tolist() for k in (0, 1)), strict=True)]
    assert float((seen[0][0] - seen[0][1]).norm()) == pytest.approx(sum(shape) / len(shape), rel=1e-3)


def test_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At construction, and chains that are too short before any training."""
    source = ProteinChains(str(folder), test=0.25)
    for kind in ("flows", "momentum"):
        with pytest.raises(ConfigurationError, match="kind: expected one of 'diffusion', 'flow'"):
            BackboneTest(source, kind)
    with pytest.raises(ConfigurationError, match="kind: expected one of"):
        TorsionTest(source, "flows")
    with pytest.raises(ConfigurationError, match="width"):
        TorsionTest(source, width=0)
    test = BackboneTest(source, longest=60)
    monkeypatch.setattr(test, "is_due", lambda batch, index: True)
    with pytest.raises(ConfigurationError, match="longest: expected two runs of 34 residues held out"):
        test.test_step(Request(0, 1), 0)


@pytest.mark.parametrize(
    "name", ["backbones_flow", pytest.param("torsions_flow", marks=pytest.mark.slow(reason="the backbones stay"))]
)
def test_benchmarks(name: str, folder: Path, tmp_path: Path) -> None:
    """Whole tests of a model that has learned nothing: training chains are valid, samples are not."""
    config: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config["base"] = [str(CONFIGS.parent / "test.yaml")]
    config["trainer"] |= {"default_root_dir": str(tmp_path), "enable_progress_bar": False}
    arguments = config["model"]["init_args"]
    arguments["source"]["init_args"] = {"path": str(folder), "test": 0.25}
    arguments |= {"steps": 2, "batch_size": 8, "width": 8, "tolerance": 0.5}
    if name == "backbones_flow":
        arguments |= {"shortest": 3, "longest": 7, "samples": 8, "evaluations": 4, "likelihoods": 2, "components": 2}
    config["data"]["init_args"]["seeds"] = [0]
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    main(["test", "--config", str(path)])
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    if name == "backbones_flow":
        assert metrics["valid chains, 7 frames, training chains"]["mean"] == 1.0
        assert metrics["valid chains, 7 frames, independent frames"]["mean"] == 1.0
        assert metrics["valid bonds, 7 frames, samples"]["mean"] < 0.9
        assert math.isfinite(metrics["NLL a residue, samples"]["mean"])
    else:
        kinds = ("general", "glycine", "proline", "pre-proline")
        assert sum(metrics[f"held-out residues, {kind}"]["mean"] for kind in kinds) > 5
        assert metrics["test NLL of the model"]["mean"] == pytest.approx(2.0 * math.log(2.0 * math.pi), abs=0.5)
