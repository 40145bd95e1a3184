"""Digits: IDX files, where they come from, batches that resume, published .mat files."""

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from tasks.files import recording
from tasks.images import mnist
from tasks.images.data import CleanTraining, OrderedBatches, ShuffledBatches
from tasks.images.idx import DataError, read_idx
from tasks.images.mat import read_affnist, read_homnist
from tasks.images.mnist import MNIST, BundledSample, download, read_digits
from tasks.images.testsets import AffNISTFiles, HomNISTFiles
from tests.tasks.sample_runs import framed_digits
from trivgeo.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
FULL = Path(os.environ.get("TRIVGEO_MNIST") or ROOT.parent / "shared" / "data" / "mnist")


def idx_bytes(array: np.ndarray) -> bytes:
    """The format, written down once more."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def grey_values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class TestIdx:
    @pytest.mark.parametrize("compress", [gzip.compress, bytes])
    @pytest.mark.parametrize("shape", [(5,), (3, 4, 2), (0, 28, 28)])
    def test_reads_what_was_written(self, tmp_path: Path, shape: tuple[int, ...], compress) -> None:
        array, path = grey_values(*shape), tmp_path / "file"
        path.write_bytes(compress(idx_bytes(array)))
        checksum = hashlib.sha256(idx_bytes(array)).hexdigest()
        read = read_idx(path, ndim=len(shape), sha256=checksum)
        np.testing.assert_array_equal(read, array)
        read[...] = 0  # writable

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "expected the magic number 0x00000803 .* got 0x$"),
            (idx_bytes(grey_values(6)), "expected the magic number 0x00000803 .* got 0x00000801"),
            (b"\0\0\x0d\x03" + bytes(12), "got 0x00000d03"),
            (idx_bytes(grey_values(2, 3, 4))[:10], "expected a header of 16 bytes, got 10; the file is truncated"),
            (
                idx_bytes(grey_values(2, 3, 4))[:-5],
                r"expected 24 entries for the shape \[2, 3, 4\], got 19; .* truncated",
            ),
            (idx_bytes(grey_values(2, 3, 4)) + b"\1", "got 25; the file is too long"),
            (gzip.compress(idx_bytes(grey_values(2, 3, 4)), mtime=0)[:-12], "expected a whole gzip file"),
            (b"\x1f\x8b" + bytes(30), "expected a whole gzip file"),
        ],
        ids=range(8),  # the workers of a parallel run must agree on the names
    )
    def test_damaged_files(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_idx(path, ndim=3)

    def test_missing_file_and_wrong_checksum(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected a readable file"):
            read_idx(tmp_path / "none", ndim=1)
        path = tmp_path / "file"
        path.write_bytes(idx_bytes(grey_values(4)))
        with pytest.raises(DataError, match=r"expected content with SHA-256 00, got [0-9a-f]{64}; delete the file"):
            read_idx(path, ndim=1, sha256="00")


class TestSources:
    def test_sample(self) -> None:
        train, test = BundledSample().train(), BundledSample().test()
        assert train.images.shape == (2_000, 1, 28, 28)
        assert test.images.shape == (512, 1, 28, 28)
        assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]  # the well-known first digits of MNIST
        assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
        assert train.labels.bincount().min() > 150
        assert 30 < train.images.float().mean() < 36  # about a tenth of the pixels are ink

    @pytest.mark.skipif(not (FULL / "train-images-idx3-ubyte.gz").exists(), reason="the files of MNIST are not there")
    def test_the_sample_is_the_beginning_of_mnist(self) -> None:
        source = MNIST(str(FULL))
        source.prepare()
        for sample, whole, count in (
            (BundledSample().train(), source.train(), 60_000),
            (BundledSample().test(), source.test(), 10_000),
        ):
            assert len(whole.labels) == count
            assert torch.equal(sample.images, whole.images[: len(sample.labels)])
            assert torch.equal(sample.labels, whole.labels[: len(sample.labels)])

    def test_where_files_are_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        monkeypatch.delenv("TRIVGEO_MNIST", raising=False)
        assert MNIST().root == Path("/cache/trivgeo/mnist")
        monkeypatch.setenv("TRIVGEO_MNIST", "/variable")
        assert MNIST().root == Path("/variable")
        assert MNIST("/argument").root == Path("/argument")

    @pytest.mark.parametrize(
        ("images", "labels", "message"),
        [
            (grey_values(3, 28, 28), np.array([1, 2], np.uint8), "expected 3 labels, got 2"),
            (
                grey_values(2, 28, 28),
                np.array([1, 2, 3], np.uint8),
                r"expected \[3, 28, 28\] images, got \[2, 28, 28\]",
            ),
            (grey_values(3, 28, 27), np.array([1, 2, 3], np.uint8), r"got \[3, 28, 27\]"),
            (grey_values(3, 28, 28), np.array([1, 10, 3], np.uint8), "expected labels 0 to 9, got 10"),
        ],
    )
    def test_wrong_counts(self, tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
        (tmp_path / "images").write_bytes(idx_bytes(images))
        (tmp_path / "labels").write_bytes(idx_bytes(labels))
        with pytest.raises(DataError, match=message):
            read_digits(tmp_path / "images", tmp_path / "labels", count=3)


class TestDownload:
    """From mirrors that are folders on the disk."""

    NAME = "t10k-labels-idx1-ubyte"

    @pytest.fixture
    def content(self, monkeypatch: pytest.MonkeyPatch) -> bytes:
        content = idx_bytes(grey_values(100_000))
        monkeypatch.setitem(mnist.CHECKSUMS, self.NAME, hashlib.sha256(content).hexdigest())
        return content

    def mirror(self, folder: Path, content: bytes) -> str:
        folder.mkdir()
        (folder / f"{self.NAME}.gz").write_bytes(gzip.compress(content))
        return folder.as_uri() + "/"

    def test_the_first_mirror_with_the_right_file(self, tmp_path: Path, content: bytes, capsys) -> None:
        mirrors = (
            (tmp_path / "absent").as_uri() + "/",
            self.mirror(tmp_path / "damaged", content[:-1]),
            self.mirror(tmp_path / "good", content),
            (tmp_path / "never asked").as_uri() + "/",
        )
        with recording() as read:
            path = download(self.NAME, tmp_path / "new" / "folder", mirrors)
        assert not read  # a run that downloads is the run of everybody who has the file
        assert [p.name for p in path.parent.iterdir()] == [f"{self.NAME}.gz"]
        assert idx_bytes(read_idx(path, ndim=1)) == content
        assert "100%" in capsys.readouterr().err

    def test_prepare_asks_for_missing_files_only(
        self, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        monkeypatch.setattr(mnist, "download", lambda name, folder: asked.append(name))
        (tmp_path / f"{self.NAME}.gz").write_bytes(b"there")
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"there, not compressed")
        MNIST(str(tmp_path)).prepare()
        assert asked == ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"]

    def test_no_mirror(self, tmp_path: Path, content: bytes) -> None:
        mirrors = ((tmp_path / "absent").as_uri() + "/", self.mirror(tmp_path / "damaged", content + b"\0"))
        with pytest.raises(
            DataError, match=r"absent.*damaged.*SHA-256.*by hand and name their folder in TRIVGEO_MNIST"
        ):
            download(self.NAME, tmp_path / "folder", mirrors)
        assert list((tmp_path / "folder").iterdir()) == []

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match="expected a folder to download"):
            download(self.NAME, tmp_path / "file", ())


class TestBatches:
    def test_frame(self) -> None:
        images = torch.from_numpy(grey_values(3, 28, 28)).unsqueeze(1)
        x = framed_digits(images)
        assert x.shape == (3, 1, 40, 40)
        assert x.dtype == torch.float32
        assert torch.equal((255 * x[:, :, 6:34, 6:34]).round().byte(), images)
        x[:, :, 6:34, 6:34] = 0
        assert not x.any()
        assert framed_digits(torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)).max() == 1

    def test_order_depends_on_seed_and_epoch_alone(self) -> None:
        batches = ShuffledBatches(23, 5, seed=1)
        first = list(batches)
        assert [len(b) for b in first] == [5] * 4 == [5] * len(batches)
        assert len({i for b in first for i in b}) == 20
        batches.set_epoch(3)
        fourth = list(batches)
        again = ShuffledBatches(23, 5, seed=1)
        again.set_epoch(3)
        assert list(again) == fourth != first
        assert list(ShuffledBatches(23, 5, seed=2)) != first

    @pytest.mark.parametrize(("count", "size"), [(10, 5), (11, 5), (3, 5), (0, 5)])
    def test_ordered_batches(self, count: int, size: int) -> None:
        batches = list(OrderedBatches(count, size))
        assert [i for b in batches for i in b] == list(range(count))
        assert len(batches) == len(OrderedBatches(count, size))
        assert all(len(b) == size for b in batches[:-1])

    def test_split(self) -> None:
        def pictures(loader) -> list[bytes]:
            return [image.numpy().tobytes() for batch in loader for image in batch.image]

        data = CleanTraining(BundledSample(), batch_size=100, validation=300, seed=1)
        data.prepare_data()
        data.setup("fit")
        train, held_out, test = map(pictures, (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()))
        assert [len(train), len(held_out), len(test)] == [1_700, 300, 512]
        whole = {image.numpy().tobytes() for image in framed_digits(BundledSample().train().images)}
        assert set(train) | set(held_out) == whole
        assert not set(train) & set(held_out)
        other = CleanTraining(BundledSample(), batch_size=100, validation=300, seed=2)
        other.setup("fit")
        assert set(pictures(other.val_dataloader())) != set(held_out)

    def test_wrong_configuration(self) -> None:
        with pytest.raises(ConfigurationError, match="batch_size"):
            CleanTraining(BundledSample(), batch_size=0)
        with pytest.raises(ConfigurationError, match=r"expected at least 2064 training images .* got 2000"):
            CleanTraining(BundledSample(), batch_size=64, validation=2_000).setup("fit")


class TestPublishedFiles:
    def affnist(self, path: Path, **changes: object) -> str:
        content = {"image": grey_values(1600, 7), "label_int": np.arange(7.0)[None], **changes}
        savemat(path, {"affNISTdata": {k: v for k, v in content.items() if v is not None}})
        return str(path)

    def homnist(self, path: Path, **changes: object) -> str:
        content = {
            "img_data": grey_values(3, 2, 40, 40) / 255.0,
            "labels": np.array([3, 1, 4]),
            "hom_matrices": np.zeros((3, 2, 3, 3)),
            **changes,
        }
        savemat(path, {k: v for k, v in content.items() if v is not None}, do_compression=True)
        return str(path)

    def test_affnist(self, tmp_path: Path) -> None:
        images, labels = read_affnist(self.affnist(tmp_path / "1.mat"))
        assert images.dtype == torch.uint8
        np.testing.assert_array_equal(images[4].numpy(), grey_values(1600, 7)[:, 4].reshape(40, 40))
        assert labels.tolist() == list(range(7))

    def test_homnist(self, tmp_path: Path) -> None:
        images, labels = read_homnist(self.homnist(tmp_path / "1.mat"))
        assert images.dtype == torch.float32
        np.testing.assert_allclose(images.numpy(), grey_values(6, 40, 40) / 255.0, atol=1e-6)
        assert labels.tolist() == [3, 3, 1, 1, 4, 4]
        flat = self.homnist(tmp_path / "2.mat", img_data=grey_values(3, 1, 40, 40))
        assert read_homnist(flat)[1].tolist() == [3, 1, 4]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"image": None},
                r"expected one structure affNISTdata with image and label_int, got fields \['label_int'\]",
            ),
            ({"image": grey_values(7, 1600)}, r"expected images \[1600, n\] and n > 0 labels, got \[7, 1600\]"),
            ({"label_int": np.arange(6)}, r"got \[1600, 7\] and \[1, 6\]"),
            ({"label_int": np.arange(4, 11)}, "expected labels 0 to 9"),
            ({"image": 255.0 * grey_values(1600, 7)}, "expected grey values as bytes or as numbers in"),
        ],
    )
    def test_wrong_affnist(self, tmp_path: Path, changes: dict, message: str) -> None:
        with pytest.raises(DataError, match=message):
            read_affnist(self.affnist(tmp_path / "1.mat", **changes))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"labels": None},
                "expected the variables img_data, labels, there is no labels",
            ),
            ({"img_data": grey_values(3, 40, 39)}, r"expected img_data \[..., 40, 40\], got \[3, 40, 39\]"),
            (
                {"labels": np.array([1, 2])},
                r"each entry of the first dimension of img_data \[3, 2, 40, 40\], got 2 labels",
            ),
            ({"img_data": np.full((3, 40, 40), np.nan)}, "expected grey values"),
            (
                {"img_data": grey_values(0, 40, 40), "labels": np.zeros(0)},
                "there is no img_data, labels",
            ),
        ],
    )
    def test_wrong_homnist(self, tmp_path: Path, changes: dict, message: str) -> None:
        with pytest.raises(DataError, match=message):
            read_homnist(self.homnist(tmp_path / "1.mat", **changes))

    def test_no_mat_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"none\.mat: expected a readable \.mat file"):
            read_affnist(tmp_path / "none.mat")
        (tmp_path / "text.mat").write_text("not a matrix" * 100)
        with pytest.raises(DataError, match=r"text\.mat: expected a readable \.mat file"):
            read_homnist(tmp_path / "text.mat")

    def test_batches(self, tmp_path: Path) -> None:
        files = [self.affnist(tmp_path / "1.mat"), self.affnist(tmp_path / "2.mat", image=grey_values(1600, 7, seed=1))]
        data = AffNISTFiles(files, limit=None, batch_size=4, seed=1)
        data.setup("test")
        problems = list(data.test_dataloader())
        assert [len(p.label) for p in problems] == [4, 4, 4, 2]
        place, image, label = (torch.cat([getattr(p, name) for p in problems]) for name in ("place", "image", "label"))
        assert sorted(place.tolist()) == list(range(14)) != place.tolist()
        both = np.concatenate([grey_values(1600, 7).T, grey_values(1600, 7, seed=1).T]) / 255.0
        np.testing.assert_allclose(image.flatten(1).numpy(), both[place], atol=1e-6)
        assert label.tolist() == [i % 7 for i in place.tolist()]
        assert problems[0].element.shape == (4, 2, 3)
        assert problems[0].element.isnan().all()
        assert problems[0].clean.isnan().all()
        data = HomNISTFiles([self.homnist(tmp_path / "3.mat")], limit=5, batch_size=5)
        data.setup("test")
        assert [p.element.shape for p in data.test_dataloader()] == [(5, 3, 3)]
        with pytest.raises(ConfigurationError, match=r"at least one \.mat file"):
            HomNISTFiles([])
