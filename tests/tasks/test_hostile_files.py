"""Files that ask for more memory than they are large, exports that leave their folder, disks that are full."""

import gzip
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from matplotlib.figure import Figure
from PIL import Image

from tasks.cli import main
from tasks.fields.fno import SmallFNO
from tasks.files import StorageError, decompressed, write_picture
from tasks.generative.sources import RNATorsions
from tasks.images import mat
from tasks.images.folder import ImageFolder
from tasks.images.idx import DataError, read_idx
from tasks.images.mat import read_affnist, read_homnist
from tasks.images.mnist import read_digits
from tasks.training import check_export
from tests.tasks.sample_runs import CONFIGS, run_on_sample
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import Torus
from trivgeo.training import AtomicCheckpointIO

LARGE = 2**25


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails where Python takes an eighth of the size of the content."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LARGE // 8
    finally:
        tracemalloc.stop()


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Files cannot grow beyond a size, as if the disk were full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


class TestArchives:
    def test_digits(self, tmp_path: Path) -> None:
        """Not decompressed beyond the size of so many images, whatever the checksum."""
        path = tmp_path / "images.gz"
        path.write_bytes(gzip.compress(bytes(LARGE)))
        with little_memory(), pytest.raises(DataError, match="of at most 3376 bytes"):
            read_digits(path, path, count=3, checksums=("00", "00"))
        with little_memory(), pytest.raises(DataError, match="of at most 1000 bytes"):
            read_idx(path, ndim=3, sha256="00", largest=1000)

    def test_exact_sizes(self) -> None:
        content = gzip.compress(bytes(600)) + gzip.compress(bytes(400))  # of two members
        assert decompressed(content, 1000) == bytes(1000)
        assert decompressed(b"plain", 1) == b"plain"
        with pytest.raises(OSError, match="more than 999 bytes"):
            decompressed(content, 999)

    def test_angles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.generative.sources._MAX_FILE_BYTES", 1000)
        path = tmp_path / "angles.gz"
        for content in (gzip.compress(b"0\t" * LARGE), gzip.compress(b"1\t2")[:-4], b"\x1f\x8b" + bytes(30)):
            path.write_bytes(content)
            with little_memory(), pytest.raises(ConfigurationError, match="rows that end in seven angles"):
                RNATorsions(str(path))

    def test_matlab(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "images.mat"
        structure = {"image": np.zeros((1600, 3), np.uint8), "label_int": np.zeros((1, 3), np.uint8)}
        scipy.io.savemat(path, {"affNISTdata": structure}, do_compression=True)
        assert read_affnist(path)[0].shape == (3, 40, 40)
        monkeypatch.setattr(mat, "_MAX_BYTES", 4000)
        with pytest.raises(DataError, match="more than 4000 bytes when decompressed"):
            read_affnist(path)
        scipy.io.savemat(path, {"img_data": np.zeros((LARGE // 1600, 40, 40), np.uint8)}, do_compression=True)
        monkeypatch.setattr(mat, "_BLOCK_BYTES", 2**16)
        with little_memory(), pytest.raises(DataError, match="more than 4000 bytes when decompressed"):
            read_homnist(path)

    def test_pictures(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "all").mkdir()
        Image.new("1", (9000, 8000)).save(tmp_path / "all" / "large.png")
        source = ImageFolder(str(tmp_path), str(tmp_path), [4, 4])
        with pytest.raises(DataError, match="expected at most 67108864 pixels, got 9000 x 8000"):
            source.test()
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # what Pillow itself warns of, and then refuses
        for side in (40, 60):
            Image.new("1", (side, side)).save(tmp_path / "all" / "large.png")
            with pytest.raises(DataError, match="expected a picture"):
                source.test()


@pytest.mark.parametrize(
    "name",
    *[["../x", "../../x", "a/b", "/tmp/x", "..", ".", "", "a\\b", "../x.safetensors", "a/../../x.safetensors", "a\0b"]],
)
def test_exports_stay_in_their_folder(name: str) -> None:
    with pytest.raises(ConfigurationError, match="export: expected a name"):
        check_export(name)


@pytest.mark.parametrize("name", ["small_cnn", "x.y", "x.safetensors", "a/x.safetensors"])
def test_names_of_exports(name: str) -> None:
    assert check_export(name) == name


def test_whole_paths_of_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working folder, or in that of trained checkpoints, and nowhere else; in none whose name begins alike."""
    for name in ("work", "work2", "kept"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    outside = ["/x.safetensors", "~/x.safetensors/../../x.safetensors"]
    outside += [str(tmp_path / name / "x.safetensors") for name in (".", "work2", "kept", "kept/a")]
    for path in outside:
        with pytest.raises(ConfigurationError, match="export: expected a name"):
            check_export(path)
    for path in (tmp_path / "work" / "x.safetensors", tmp_path / "work" / "a" / "x.safetensors"):
        assert check_export(str(path)) == str(path)
    monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path / "kept"))
    assert check_export(str(tmp_path / "kept" / "a" / "x.safetensors"))
    with pytest.raises(ConfigurationError, match="that TRIVGEO_CHECKPOINTS names"):
        check_export(str(tmp_path / "work2" / "x.safetensors"))


def train(config: str, setting: str) -> None:
    """Train a configuration, with the small digits where it is of digits."""
    if config.startswith("mnist"):
        run_on_sample("fit", config, setting, "--data.batch_size=50")
    else:
        main(["fit", f"--config={CONFIGS / config}.yaml", setting])


@pytest.mark.parametrize("config", ["frames/score", "heat/deeponet", "heat/deeponet_augmented", "mnist/small_cnn"])
@pytest.mark.parametrize("export", ["../x", "{}/x.safetensors"])
def test_every_training_keeps_its_export_in_the_folder(
    config: str,
    export: str,
    workplace: None,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of operators and of frames wrote wherever they were told."""
    outside = tmp_path_factory.mktemp("outside")
    setting = f"--model.export={export.format(outside)}"
    with pytest.raises((ConfigurationError, SystemExit)) as caught:
        train(config, setting)
    assert "export: expected a name" in str(caught.value) + capsys.readouterr().err
    assert not list(Path().rglob("*.ckpt"))
    assert not list(outside.iterdir())


class TestFullDisk:
    def test_a_checkpoint_is_whole(self, tmp_path: Path) -> None:
        """The one before stays, and nothing beside it."""
        path, io = tmp_path / "last.ckpt", AtomicCheckpointIO()
        io.save_checkpoint({"state_dict": {"x": torch.ones(10)}}, path)
        before = path.read_bytes()
        for size in (0, 1000, 100_000):
            with (
                small_disk(size),
                pytest.raises(CheckpointError, match=r"last\.ckpt: expected a file that can be written"),
            ):
                io.save_checkpoint({"state_dict": {"x": torch.rand(100_000)}}, path)
            assert path.read_bytes() == before
            assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
        assert torch.equal(io.load_checkpoint(path, weights_only=True)["state_dict"]["x"], torch.ones(10))

    def test_a_training_goes_on_when_there_is_space(self, tmp_path: Path) -> None:
        samples = Torus(1).random(64)
        settings = {"batch_size": 8, "folder": tmp_path / "run", "progress": False}
        model = GroupDiffusion(Torus(1), "flow", width=32, depth=1)
        with (
            small_disk(10_000),
            pytest.raises(CheckpointError, match=r"last\.ckpt: expected a file that can be written"),
        ):
            model.fit(samples, steps=4, **settings)
        assert model.fitted is None
        model.fit(samples, steps=4, **settings)
        last = tmp_path / "run" / "last.ckpt"
        assert [file.name for file in last.parent.iterdir()] == ["last.ckpt"]
        whole = last.read_bytes()
        for content in (whole[: len(whole) // 2], b"", b"no checkpoint"):
            last.write_bytes(content)
            with pytest.raises(CheckpointError, match=r"last\.ckpt: expected the checkpoint of a training, whole"):
                model.fit(samples, steps=8, **settings)
        last.write_bytes(whole)
        model.fit(samples, steps=8, **settings)
        assert model.fitted.num_steps == 8

    def test_folders_that_cannot_be_made(self, tmp_path: Path) -> None:
        """Said before the work."""
        (tmp_path / "file").write_text("")
        (tmp_path / "run" / "last.ckpt").mkdir(parents=True)
        model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
        for folder in (tmp_path / "file" / "below", tmp_path / "run", "a\0b"):
            with pytest.raises(CheckpointError, match="expected a file"):
                model.fit(Torus(1).random(64), steps=2, batch_size=8, folder=folder, progress=False)

    def test_pictures(self, tmp_path: Path) -> None:
        path = tmp_path / "some.png"
        figure = Figure()
        figure.subplots().plot([0, 1])
        write_picture(figure, path, 50)
        before = path.read_bytes()
        assert before[:4] == b"\x89PNG"
        with small_disk(100), pytest.raises(StorageError, match="can be written"):
            write_picture(figure, path, 50)
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["some.png"]
        write_picture(figure, str(tmp_path / "some.SVG"), 50)
        assert "<svg" in (tmp_path / "some.SVG").read_text()


def test_fewer_points_than_modes() -> None:
    """Of a Fourier neural operator: the largest number of modes works, one more is named."""
    for modes, shape in (((5,), (8,)), ((4, 5), (8, 8)), ((4, 3), (9, 5))):
        net = SmallFNO(modes, width=2, layers=1)
        assert net(torch.zeros(1, 2, *shape)).shape == (1, 1, *shape)
        for axis in range(len(modes)):
            more = [m + (i == axis) for i, m in enumerate(modes)]
            with pytest.raises(ShapeError, match=r"two points for each of .* modes"):
                SmallFNO(more, width=2, layers=1)(torch.zeros(1, 2, *shape))
    with pytest.raises(ConfigurationError, match="modes"):
        SmallFNO((0,))
