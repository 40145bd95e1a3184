"""Catalogues of events on the Earth: published formats of files, splits, and the made one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.generative.earth import earth_split, from_degrees, made_catalogue, read_catalogue
from trivgeo.errors import ConfigurationError

HEADERS = {
    "comment and names": "# https://example.org/archive\nlat,long\n",
    "comment": "# https://example.org/archive\n",
    "three comments": "# a\n# removed events with missing lat or lon\n# b\nLATITUDE,LONGITUDE\n",
    "none": "",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_files(header: str, ending: str, tmp_path: Path) -> None:
    """The headers of the four published files; the last line may lack its end."""
    path = tmp_path / "events.csv"
    path.write_bytes((header + "0,0\n0,90\n90,12.5\n-30.2,-178.47").replace("\n", ending).encode())
    found = read_catalogue(path)
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(found[:3], expected, atol=1e-12)
    assert found.shape == (4, 3)
    assert float(found[3, 2]) == pytest.approx(-0.50302, abs=1e-5)  # the sine of the latitude
    assert float(found[3, 1]) < 0.0


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    for text, match in (("1,2\n3;4\n", "in line 2"), ("95,3\n", "latitudes"), ("a,b\n", "latitudes"), ("1\n", "latit")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=match):
            read_catalogue(path)
    with pytest.raises(ConfigurationError, match="expected a file"):
        read_catalogue(tmp_path / "none.csv")


def test_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is in one part; a split is a function of the seed."""
    degrees = torch.stack([torch.linspace(-80.0, 80.0, 50), torch.linspace(0.0, 300.0, 50)], -1)
    (tmp_path / "flood.csv").write_text("lat,long\n" + "\n".join(f"{a:.4f},{b:.4f}" for a, b in degrees.tolist()))
    monkeypatch.setenv("TRIVGEO_EARTH", str(tmp_path))
    split = earth_split("flood", 3)
    assert [len(x) for x in split] == [40, 5, 5]
    found, every = torch.cat(tuple(split)), from_degrees(degrees.double()).float()
    assert torch.allclose(found[found[:, 2].argsort()], every, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(split, earth_split("flood", 3), strict=True))
    assert not torch.equal(split.test, earth_split("flood", 4).test)
    for name in ("fire", "tsunami"):
        with pytest.raises(ConfigurationError):
            earth_split(name, 0)
    monkeypatch.delenv("TRIVGEO_EARTH")
    with pytest.raises(ConfigurationError, match="TRIVGEO_EARTH"):
        earth_split("flood", 0)


def test_made_catalogue() -> None:
    """On the sphere, and far from uniform."""
    points = made_catalogue(500)
    assert torch.allclose(points.norm(dim=-1), torch.ones(500, dtype=torch.float64))
    assert torch.equal(points, made_catalogue(500))
    near = (points @ points.mT > 0.995).double().mean()
    assert float(near) > 5.0 * 0.0025  # the share of a uniform sample
    assert len(earth_split("made", 0).test) == 400
