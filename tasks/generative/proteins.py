"""Backbones of proteins from files of the Protein Data Bank: rigid frames of residues, and torsion angles."""

import importlib.util
import itertools
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_fraction
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE

from ..files import decompressed, read_bytes
from ..seeds import generator_of

PROTEINS_VARIABLE = "TRIVGEO_PROTEINS"
"""Environment variable that names the folder of protein chains."""

BOND = 1.329
"""Length of the bond from a residue to the next one, C to N, in angstroms (Engh and Huber 1991)."""

RESIDUE_KINDS = ("general", "glycine", "proline", "pre-proline")
"""Kinds of residues whose torsion angles have different distributions (Lovell et al. 2003)."""

ANGLES = ("phi (deg)", "psi (deg)")
"""Names of the torsion angles of a backbone in pictures."""

_PACKAGE = "MDAnalysisTests"  # package whose test data hold protein chains
_BACKBONE = ("N", "CA", "C")
_MAX_BOND_LENGTH = 1.8  # longest bond between neighbours in a chain, in angstroms
_MAX_FILE_BYTES = 2**26  # bytes of a decompressed file
_FRAME_GROUP = SE(3)


class Segment(NamedTuple):
    """Residues that follow one another without a gap.

    Attributes:
        names: names of the residues, three letters each.
        atoms: positions of N, CA and C in angstroms, `[n, 3, 3]`.
    """

    names: tuple[str, ...]
    atoms: Tensor


def read_segments(text: str) -> list[Segment]:
    """Segments of the first model in a text in PDB format.

    A segment ends where an atom of the backbone is missing, or the bond to the next residue is longer than 1.8
    angstroms. Of atoms at alternative places the first one counts.

    Raises:
        ValueError: a coordinate is no number.
    """
    residues: dict[str, tuple[str, dict[str, list[float]]]] = {}
    for line in text.splitlines():
        if line.startswith("ENDMDL"):
            break
        name = line[12:16].strip()
        if line.startswith("ATOM  ") and name in _BACKBONE:
            _, atoms = residues.setdefault(line[21:27], (line[17:20].strip(), {}))
            atoms.setdefault(name, [float(line[k : k + 8]) for k in (30, 38, 46)])
    segments: list[tuple[list[str], list[Tensor]]] = []
    last: Tensor | None = None
    for name, atoms in residues.values():
        if len(atoms) < len(_BACKBONE):
            last = None
            continue
        found = torch.tensor([atoms[atom] for atom in _BACKBONE], dtype=torch.float64)
        if last is None or float((found[0] - last[2]).norm()) > _MAX_BOND_LENGTH:
            segments.append(([], []))
        segments[-1][0].append(name)
        segments[-1][1].append(found)
        last = found
    return [Segment(tuple(names), torch.stack(atoms)) for names, atoms in segments]


def frames_of(atoms: Tensor) -> Tensor:
    """Frames of residues, elements `[*batch, 3, 4]` of SE(3), from N, CA and C, `[*batch, 3, 3]`.

    The origin is CA; the first axis points to C, and the plane of the first two holds N.
    """
    n, ca, c = atoms.unbind(-2)
    x = torch.nn.functional.normalize(c - ca, dim=-1)
    z = torch.nn.functional.normalize(torch.linalg.cross(x, n - ca), dim=-1)
    return torch.stack([x, torch.linalg.cross(z, x), z, ca], -1)


def mean_residue(atoms: Tensor) -> Tensor:
    """N, CA and C of the mean residue in its frame, `[3, 3]`, from those of residues `[n, 3, 3]`."""
    frames = frames_of(atoms)
    return ((atoms - frames[:, None, :, 3]) @ frames[:, :, :3]).mean(0)


def atoms_of(frames: Tensor, residue: Tensor) -> Tensor:
    """N, CA and C of residues `[*batch, 3, 3]` with the given shape `[3, 3]`, from their frames `[*batch, 3, 4]`."""
    return residue @ frames[..., :3].mT + frames[..., None, :, 3]


def relative_frames(frames: Tensor) -> Tensor:
    """Each frame but the first in the frame before it, `[*batch, n - 1, 3, 4]` for `[*batch, n, 3, 4]`.

    No motion of the whole chain changes them.
    """
    return _FRAME_GROUP.compose(_FRAME_GROUP.inverse(frames[..., :-1, :, :]), frames[..., 1:, :, :])


def chain_of(relative: Tensor) -> Tensor:
    """Frames `[*batch, n, 3, 4]`, the first one at the origin, from relative frames `[*batch, n - 1, 3, 4]`."""
    first = _FRAME_GROUP.identity(dtype=relative.dtype, device=relative.device).expand(*relative.shape[:-3], 3, 4)
    frames = [first]
    for step in relative.unbind(-3):
        frames.append(_FRAME_GROUP.compose(frames[-1], step))
    return torch.stack(frames, -3)


def dihedral(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The angle about the axis from b to c between the planes of a and of d, in radians `[*batch]`, IUPAC's sign."""
    axis = torch.nn.functional.normalize(c - b, dim=-1)
    left, right = torch.linalg.cross(b - a, axis), torch.linalg.cross(axis, d - c)
    return torch.atan2((torch.linalg.cross(left, right) * axis).sum(-1), (left * right).sum(-1))


def torsions(atoms: Tensor) -> Tensor:
    """Angles phi and psi of all residues but the first and the last, `[*batch, n - 2, 2]` for `[*batch, n, 3, 3]`."""
    n, ca, c = atoms.unbind(-2)
    own_n, own_ca, own_c = (x[..., 1:-1, :] for x in (n, ca, c))
    phi = dihedral(c[..., :-2, :], own_n, own_ca, own_c)
    return torch.stack([phi, dihedral(own_n, own_ca, own_c, n[..., 2:, :])], -1)


def residue_kinds(names: tuple[str, ...]) -> Tensor:
    """Indices in `RESIDUE_KINDS` of all residues but the first and the last, `[n - 2]`."""
    own = {"GLY": 1, "PRO": 2}
    pairs = itertools.pairwise(names[1:])
    return torch.tensor([own.get(name, 3 if after == "PRO" else 0) for name, after in pairs], dtype=torch.int64)


class ProteinChains:
    """Chains of proteins, of which some are held out.

    Args:
        path: a folder of files in PDB format, perhaps compressed, named by code and chain, such as `1ahsA.pdb.gz`;
            when None, what the environment variable TRIVGEO_PROTEINS names, or else the 50 chains in the data of the
            package MDAnalysisTests (`pip install --no-deps MDAnalysisTests`).
        test: share of the chains that is held out.

    Raises:
        ConfigurationError: there is no such folder, it holds fewer than two chains, or a file is none in PDB format.
    """

    def __init__(self, path: str | None = None, test: float = 0.2) -> None:
        self.test = check_fraction("test", test)
        folder = path or os.environ.get(PROTEINS_VARIABLE) or _package_folder()
        if folder is None or not Path(folder).is_dir():
            raise ConfigurationError(
                f"{PROTEINS_VARIABLE}: expected a folder of protein chains, or the package {_PACKAGE}, got {folder!r}"
            )
        files = sorted(file for file in Path(folder).iterdir() if file.name[5:] in (".pdb", ".pdb.gz"))
        self.chains = [chain for file in files if (chain := _read_chain(file))]
        if len(self.chains) < 2:
            raise ConfigurationError(f"{folder}: expected two protein chains or more, got {len(self.chains)}")

    def split(self, seed: int) -> tuple[list[Segment], list[Segment]]:
        """Segments of the chains for training, and of those that are held out, a function of the seed."""
        order = torch.randperm(len(self.chains), generator=generator_of(seed)).tolist()
        number = min(max(1, round(self.test * len(order))), len(order) - 1)
        held = [segment for i in order[:number] for segment in self.chains[i]]
        return [segment for i in order[number:] for segment in self.chains[i]], held


def windows(segments: list[Segment], length: int) -> Tensor:
    """Frames of all runs of ``length`` residues, `[m, length, 3, 4]`."""
    check_count("length", length)
    long = [frames_of(segment.atoms) for segment in segments if len(segment.names) >= length]
    return torch.cat([torch.zeros(0, length, 3, 4).double()] + [x.unfold(0, length, 1).movedim(-1, 1) for x in long])


def _read_chain(file: Path) -> list[Segment]:
    """The segments of a file."""
    try:
        return read_segments(decompressed(read_bytes(file), _MAX_FILE_BYTES).decode())
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise ConfigurationError(f"{file}: expected a file in PDB format: {error}") from error


def _package_folder() -> str | None:
    """The folder of chains of the installed package, which is not imported."""
    found = importlib.util.find_spec(_PACKAGE)
    origin = None if found is None else found.origin
    return None if origin is None else str(Path(origin).parent / "data" / "dssp")
