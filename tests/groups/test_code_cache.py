"""Broken files in the cache of `torch.compile`: code is compiled anew, and a warning says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import seeded
from trivgeo import _compile
from trivgeo.groups import SL, compiled


class Cache:
    """A compiler that fails with the files of some folders."""

    def __init__(self, folder: Path, *broken: str) -> None:
        self.broken = {str(folder / name) for name in broken}
        self.seen: list[str] = []

    def __call__(self, function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        self.seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        if self.seen[-1] not in self.broken:
            return function
        if "differs" in self.seen[-1]:
            return lambda *x: function(*x) + 1.0
        raise ImportError("file too short")


@pytest.mark.parametrize("name", ["", "differs"])
def test_code_is_compiled_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder below the broken one, also where code loads and is wrong."""
    cache = tmp_path / name
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr(_compile, "fuse", compiler := Cache(tmp_path, name))
    group = compiled(SL(2), threshold=2)
    v = torch.randn(4, 3, generator=seeded(0))
    with pytest.warns(RuntimeWarning, match=r"a file in its cache .* seems to be broken .* Delete the folder") as seen:
        g = group.exp(v)
    assert seen[0].filename == __file__
    assert str(cache) in str(seen[0].message)
    assert torch.equal(g, SL(2).exp(v))
    assert not group.compiler.report[0].reason
    assert compiler.seen == [str(cache), str(cache / "trivgeo_spare")]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache)
    compiler.seen.clear()
    assert torch.equal(group.exp(2 * v), SL(2).exp(2 * v))
    assert compiler.seen == []


def test_a_spare_folder_that_is_broken_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "trivgeo_spare" / "ab").mkdir(parents=True)
    (tmp_path / "trivgeo_spare" / "ab" / "code.py").write_text("")

    def compiler(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        if folder == tmp_path or (folder / "ab").exists():
            raise SyntaxError("unexpected end")
        return function

    monkeypatch.setattr(_compile, "fuse", compiler)
    group = compiled(SL(2), threshold=2)
    with pytest.warns(RuntimeWarning, match="SyntaxError: unexpected end"):
        group.exp(torch.zeros(4, 3))
    assert not group.compiler.report[0].reason


def test_what_no_cache_is_the_reason_of_is_said_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_compile, "fuse", compiler := Cache(tmp_path, ".", "trivgeo_spare"))
    group = compiled(SL(2), threshold=2)
    with pytest.warns(RuntimeWarning, match="exp in torch.float32: eager, since compilation failed: ImportError"):
        group.exp(torch.zeros(4, 3))
    assert len(compiler.seen) == 2
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys, torch, warnings
from trivgeo.groups import SO, compiled
group = compiled(SO(2), threshold=2)
v = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(-1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.allclose(group.exp(v), SO(2).exp(v))
assert not group.compiler.report[0].reason, group.compiler
print(len([w for w in caught if "seems to be broken" in str(w.message)]))
"""


@pytest.mark.slow(reason="processes that compile; the same with a compiler of the test stays")
def test_every_kind_of_broken_file(tmp_path: Path) -> None:
    """Each kind of file that torch keeps, cut and emptied: the next process compiles, or reads what it needs."""
    cache = tmp_path / "cache"

    def run() -> int:
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert found.returncode == 0, found.stderr
        return int(found.stdout)

    assert run() == 0
    said = 0
    for share in (0.0, 0.5):
        for file in [path for path in cache.rglob("*") if path.is_file() and "trivgeo_spare" not in path.parts]:
            file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
        said += run()
    assert said <= 2
