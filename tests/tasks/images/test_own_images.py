"""Sets of images that need no download: the digits of scikit-learn, and folders of pictures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_digits

from tasks.cli import main
from tasks.files import recording
from tasks.images.folder import ImageFolder
from tasks.images.idx import DataError
from tasks.images.scikit import ScikitDigits
from tests.tasks.images.test_image_inversion import override, results
from tests.tasks.images.test_new_image_set import FIT, TEST, run
from trivgeo.errors import ConfigurationError

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


class TestScikitDigits:
    def test_all_digits_once(self) -> None:
        source = ScikitDigits()
        parts = [source.train(), source.test()]
        assert [len(part.labels) for part in parts] == [1297, 500]
        images, labels = (torch.cat(both) for both in zip(*parts, strict=True))
        digits = load_digits()
        large = ndimage.zoom(digits.images, (1, 2, 2), order=1, mode="nearest", grid_mode=True) / 16
        distance = torch.cdist(images.flatten(1).float() / 255, torch.from_numpy(large).flatten(1).float())
        least, nearest = distance.min(1)
        assert float(least.max()) < 16 / 255
        assert len(nearest.unique()) == 1797
        assert torch.equal(labels, torch.from_numpy(digits.target)[nearest])

    def test_without_scikit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(ConfigurationError, match="pip install 'scikit-learn"):
            ScikitDigits().train()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve and four plain pictures of each colour, of several sizes and kinds."""
    for part, count in (("train", 12), ("test", 4)):
        for name, colour in COLOURS.items():
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (20 + i, 30), colour).save(folder / f"{i}.{('png', 'jpg')[i % 2]}", quality=95)
    return tmp_path


class TestImageFolder:
    def test_reads(self, pictures: Path) -> None:
        source = ImageFolder(str(pictures / "train"), str(pictures / "test"), [12, 16], frame=[20, 20])
        assert source.format == (3, 20, 20, 3)
        train, test = source.train(), source.test()
        assert train.images.shape == (36, 3, 12, 16)
        assert test.labels.bincount().tolist() == [4, 4, 4]
        expected = torch.tensor(list(COLOURS.values()))[train.labels][..., None, None]
        assert int((train.images.int() - expected).abs().max()) <= 4  # what JPEG changes

    def test_pictures_are_files_of_the_run(self, pictures: Path) -> None:
        """With other pictures it is another run."""
        source = ImageFolder(str(pictures / "train"), str(pictures / "test"), [4, 4])
        with recording() as read:
            source.test()
        assert set(read) == {str(path) for path in (pictures / "test").rglob("*.*")}

    def test_right_way_round_and_grey(self, tmp_path: Path) -> None:
        pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
        (tmp_path / "only").mkdir()
        Image.fromarray(pixels).save(tmp_path / "only" / "a.PNG")
        Image.fromarray(pixels).convert("RGB").save(tmp_path / "only" / "b.png")
        for channels in (1, 3):
            images = ImageFolder(str(tmp_path), str(tmp_path), [2, 3], channels=channels).test().images
            assert torch.equal(images, torch.from_numpy(pixels).expand(2, channels, 2, 3))

    def test_sixteen_bits_and_turned_cameras(self, tmp_path: Path) -> None:
        (tmp_path / "all").mkdir()
        ramp = np.linspace(0, 65535, 6).round().astype(np.uint16).reshape(2, 3)
        Image.fromarray(ramp).save(tmp_path / "all" / "deep.png")
        half = Image.fromarray(np.array([[0, 255], [0, 255], [0, 255]], dtype=np.uint8))
        turned = Image.Exif()
        turned[0x0112] = 6  # a quarter turn to the right brings it upright
        half.resize((32, 48), Image.Resampling.NEAREST).save(tmp_path / "all" / "phone.jpg", exif=turned, quality=100)
        source = ImageFolder(str(tmp_path), str(tmp_path), [2, 3], channels=1)
        deep, phone = source.test().images[:, 0]
        assert deep.flatten().tolist() == [0, 51, 102, 153, 204, 255]
        assert phone[0].max() < 60 < 195 < phone[1].min()

    def test_ratio_of_sides_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "all").mkdir()
        Image.new("RGB", (40, 10), COLOURS["red"]).save(tmp_path / "all" / "wide.png")
        source = ImageFolder(str(tmp_path), str(tmp_path), [12, 16], keep_aspect=True)
        shown = source.test().images[0, 0] == 255
        assert shown.any(1).nonzero().flatten().tolist() == [4, 5, 6, 7]
        assert shown[4:8].all()

    def test_numbers_of_a_pretrained_network(self, pictures: Path) -> None:
        for number, name in zip((9, 10, 2), COLOURS, strict=True):
            (pictures / "test" / name).rename(pictures / "test" / str(number))
        test = str(pictures / "test")
        source = ImageFolder(None, test, [4, 4], classes=11)
        images, labels = source.test()
        assert source.classes == 11
        assert sorted(set(labels.tolist())) == [2, 9, 10]
        expected = {2: COLOURS["red"], 9: COLOURS["blue"], 10: COLOURS["green"]}
        colours = torch.tensor([expected[number] for number in labels.tolist()])
        assert int((images.int() - colours[..., None, None]).abs().max()) <= 4
        with pytest.raises(DataError, match="for training"):
            source.train()
        with pytest.raises(DataError, match="folders named 0 to 9, got also 10"):
            ImageFolder(None, test, [4, 4], classes=10)
        with pytest.raises(ConfigurationError, match="classes"):
            ImageFolder(None, test, [4, 4])

    def test_transparent_pictures(self, tmp_path: Path) -> None:
        """Opaque ones are read; what lies on no ground would lose its shape."""
        (tmp_path / "all").mkdir()
        picture = Image.new("RGBA", (4, 4), (200, 100, 50, 255))
        picture.save(tmp_path / "all" / "a.png")
        source = ImageFolder(str(tmp_path), str(tmp_path), [4, 4])
        assert source.test().images[0, :, 0, 0].tolist() == [200, 100, 50]
        picture.putpixel((1, 1), (0, 0, 0, 0))
        picture.save(tmp_path / "all" / "a.png")
        with pytest.raises(DataError, match="transparent"):
            source.test()

    def test_wrong_folders(self, pictures: Path, tmp_path: Path) -> None:
        train, test = str(pictures / "train"), str(pictures / "test")
        with pytest.raises(DataError, match="nowhere: expected a folder of class folders"):
            ImageFolder("nowhere", test, [8, 8])
        with pytest.raises(DataError, match="expected a folder for each class"):
            ImageFolder(str(pictures / "train" / "red"), test, [8, 8])
        (pictures / "test" / "pink").mkdir()
        with pytest.raises(DataError, match="got also pink"):
            ImageFolder(train, test, [8, 8])
        (pictures / "train" / "pink").mkdir()
        with pytest.raises(DataError, match=r"pink: expected files \.png"):
            ImageFolder(train, test, [8, 8]).train()
        (pictures / "test" / "pink" / "a.png").write_text("no picture")
        with pytest.raises(DataError, match=r"a\.png: expected a picture, got a file of another kind"):
            ImageFolder(train, test, [8, 8]).test()

    def test_wrong_sizes(self, pictures: Path) -> None:
        train, test = str(pictures / "train"), str(pictures / "test")
        for options in (
            {"size": [8]},
            {"size": [8, 0]},
            {"size": [8, 8], "frame": [8, 7]},
            {"size": [8, 8], "channels": 2},
        ):
            with pytest.raises(ConfigurationError, match="expected"):
                ImageFolder(train, test, **options)

    def test_from_the_command_line(self, pictures: Path, workplace: None) -> None:
        source = {
            "class_path": "tasks.images.folder.ImageFolder",
            "init_args": {"train": "train", "test": "test", "size": [24, 28], "frame": [32, 32]},
        }
        options = {"source": source, "batch_size": 10, "validation": 6}
        run("fit", FIT | {"data": {**FIT["data"], "init_args": options}})
        run("test", TEST | {"data": {**TEST["data"], "init_args": TEST["data"]["init_args"] | {"source": source}}})
        document = json.loads(Path("out/results.json").read_text())
        assert len(document["rows"]) == 24
        assert document["metrics"]["accuracy on clean images"]["mean"] == 1.0
        with pytest.raises(ConfigurationError, match="one that is trained, got ImageInversion, for trivgeo test"):
            run("fit", TEST | {"data": {**FIT["data"], "init_args": options}})


@pytest.mark.parametrize(("name", "limit"), [("learned", 100), pytest.param("tied", 50, marks=pytest.mark.slow)])
def test_digits_are_recognised(tmp_path: Path, name: str, limit: int) -> None:
    """Nearly as many as with the transformation undone that was drawn, and far more than without."""
    main(override(tmp_path, f"digits/{name}.yaml", data={"init_args": {"limit": limit}}))
    accuracy = {key: metric["mean"] for key, metric in results(tmp_path)["metrics"].items()}
    assert accuracy["accuracy with inversion"] >= accuracy["accuracy with the true transformation"] - 0.1
    assert accuracy["accuracy with inversion"] >= accuracy["accuracy without inversion"] + 0.4
    assert accuracy["accuracy on clean images"] >= 0.95
