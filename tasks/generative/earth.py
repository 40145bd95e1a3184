"""Catalogues of events on the Earth: points of the sphere from published files of latitudes and longitudes."""

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError

from ..files import read_bytes
from ..seeds import generator_of

EARTH_VARIABLE = "TRIVGEO_EARTH"
"""Environment variable with the folder of the files."""

CATALOGUES = {"volcano": "volerup.csv", "earthquake": "quakes_all.csv", "flood": "flood.csv", "fire": "fire.csv"}
"""Names of the catalogues of Mathieu and Nickel (2020), and of their files."""

_HELD_OUT_SHARE = 0.1  # of events, for validation, and once more for the test
_NUM_ARCS = 6  # arcs of the made catalogue


class EarthSplit(NamedTuple):
    """Points of the sphere `[m, 3]`.

    Attributes:
        train: four fifths.
        validation: a tenth.
        test: a tenth.
    """

    train: Tensor
    validation: Tensor
    test: Tensor


def read_catalogue(path: str | Path) -> Tensor:
    """Return the points `[m, 3]` of a file of rows `latitude,longitude` in degrees, further columns ignored.

    Lines before the first such row are headers, as are lines that begin with `#`.

    Raises:
        ConfigurationError: there is no such file, a later line is no such row, or a latitude is out of range.
    """
    try:
        text = read_bytes(path).decode()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected a file of latitudes and longitudes: {error}") from error
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            latitude, longitude = (float(x) for x in line.split(",")[:2])
        except ValueError as error:
            if rows:
                raise ConfigurationError(f"{path}: expected latitude,longitude in line {number}: {error}") from error
            continue
        rows.append([latitude, longitude])
    degrees = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    if not len(rows) or not bool((degrees[:, 0].abs() <= 90.0).all()):
        raise ConfigurationError(f"{path}: expected latitudes of -90 to 90 degrees in the first column")
    return from_degrees(degrees)


def from_degrees(degrees: Tensor) -> Tensor:
    """Return points of the sphere, `[..., 3]`, of latitudes and longitudes in degrees, `[..., 2]`."""
    latitude, longitude = degrees.deg2rad().unbind(-1)
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], -1)


def made_catalogue(num_events: int = 4000) -> Tensor:
    """Return events `[num_events, 3]` along arcs of great circles, as at the edges of plates, always the same."""
    generator = generator_of(0)
    ends = torch.nn.functional.normalize(torch.randn(2, _NUM_ARCS, 3, generator=generator, dtype=torch.float64), dim=-1)
    which = torch.randint(_NUM_ARCS, (check_count("num_events", num_events),), generator=generator)
    share = torch.rand(num_events, 1, generator=generator, dtype=torch.float64)
    along = (1.0 - share) * ends[0, which] + share * ends[1, which]
    noise = 0.03 * torch.randn(num_events, 3, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(torch.nn.functional.normalize(along, dim=-1) + noise, dim=-1)


def earth_split(name: str, seed: int, folder: str | None = None) -> EarthSplit:
    """Split a catalogue at random, a function of the seed, in single precision.

    Args:
        name: a name of `CATALOGUES`, or "made" for events that need no file.
        seed: of the split.
        folder: folder of the files; default: that of the environment variable `EARTH_VARIABLE`.

    Raises:
        ConfigurationError: there is no such catalogue or file.
    """
    if name == "made":
        points = made_catalogue()
    else:
        found = folder or os.environ.get(EARTH_VARIABLE)
        if name not in CATALOGUES or not found:
            known = ", ".join((*CATALOGUES, "made"))
            raise ConfigurationError(
                f"{EARTH_VARIABLE}: expected the folder of one of the catalogues {known}, got {found!r} for {name!r}"
            )
        points = read_catalogue(Path(found) / CATALOGUES[name])
    points = points.float()[torch.randperm(len(points), generator=generator_of(seed))]
    held = max(1, round(_HELD_OUT_SHARE * len(points)))
    return EarthSplit(points[2 * held :], points[held : 2 * held], points[:held])
