"""Rows on several devices, rows of batches, and metrics of whole seeds."""

import csv
import importlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import save_file

from tasks.files import StorageError, checksum, decoded, encoded, read_document, recording, write_whole
from tasks.problems import Problems
from tasks.results import ResultsWriter, ShardedTest
from tasks.run_identity import identity
from tasks.summary import format_summary
from trivgeo.errors import ConfigurationError


class FakeStrategy:
    def barrier(self) -> None:
        pass


def trainer(rank: int = 0, world: int = 1, loggers: Sequence[Any] = ()) -> Any:
    return SimpleNamespace(
        global_rank=rank, world_size=world, strategy=FakeStrategy(), datamodule=None, loggers=loggers
    )


def row(seed: int, case: int, value: float = 1.0) -> dict[str, Any]:
    return {"seed": seed, "case": case, "metrics": {"error": value}}


class Module(ShardedTest):
    pass


def writers(folder: Path, world: int, config: Mapping[str, Any] | None = None) -> list[ResultsWriter]:
    made = []
    for rank in range(world):
        writer = ResultsWriter(str(folder))
        writer.config = config or {}
        writer.setup(trainer(rank, world), Module(), "test")
        writer.on_test_epoch_start(trainer(rank, world), Module())
        made.append(writer)
    return made


def kill(*runs: ResultsWriter) -> None:
    """What the end of a process does: its lock is gone."""
    for writer in runs:
        writer.teardown(trainer(), Module(), "test")


def shown(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock")


def run_of_512_cases(folder: Path) -> None:
    """Starts, or goes on with, a run whose errors are a function of the case."""
    (writer,) = writers(folder, 1)
    for batch in range(16):
        if not writer.done(0, batch):
            writer.write([row(0, case, 1.0 / (1 + case)) for case in range(32 * batch, 32 * batch + 32)], batch)
    writer.on_test_end(trainer(), Module())
    kill(writer)


def cases(document: Mapping[str, Any]) -> Any:
    """Metrics and rows, without the clock."""
    timeless = [{name: value for name, value in r.items() if name != "run_seconds"} for r in document["rows"]]
    return document["metrics"], timeless


def test_devices_write_files_of_their_own_that_become_one(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.write([row(0, 0), row(0, 1)], batch=0)
    second.write([row(0, 2), row(0, 3)], batch=1)
    first.write([row(0, 4)], batch=2)
    assert shown(tmp_path) == ["rows.1.jsonl", "rows.jsonl"]
    first.on_test_end(trainer(0, 2), Module())
    assert shown(tmp_path) == ["results.json", "rows.jsonl"]
    document = json.loads((tmp_path / "results.json").read_text())
    assert [r["case"] for r in document["rows"]] == [0, 1, 2, 3, 4]


def test_loggers_get_every_metric(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="log", version="")
    (alone,) = writers(tmp_path / "run", 1)
    alone.write([row(0, 0, 1.0), row(0, 1, 3.0)])
    alone.write([row(1, 0, 4.0)], batch=1)
    alone.add_metric("distance", {0: 0.5, 1: 0.5})
    alone.on_test_end(trainer(loggers=[logger]), Module())
    logger.save()
    (found,) = csv.DictReader((tmp_path / "log" / "metrics.csv").read_text().splitlines())
    assert {name: float(found[f"test/{name}"]) for name in ("error/mean", "error/worst", "distance/mean")} == {
        "error/mean": 3.0,
        "error/worst": 4.0,
        "distance/mean": 0.5,
    }


def test_a_killed_run_on_two_devices_goes_on_with_one(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.write([row(0, 0)], batch=0)
    second.write([row(0, 1)], batch=1)
    kill(first, second)
    (alone,) = writers(tmp_path, 1)
    assert [alone.done(0, b) for b in (0, 1, 2)] == [True, True, False]
    assert not alone.done(1, 0)
    assert shown(tmp_path) == ["rows.jsonl"]
    alone.write([row(0, 2)], batch=2)
    alone.on_test_end(trainer(), Module())
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 3


def test_half_a_batch_is_done_again(tmp_path: Path) -> None:
    (writer,) = writers(tmp_path, 1)
    writer.write([row(0, 0), row(0, 1)], batch=0)
    writer.write([row(0, 2), row(0, 3)], batch=1)
    kill(writer)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([line for line in path.read_text().splitlines() if line][:4]) + "\n")
    (again,) = writers(tmp_path, 1)
    assert (again.done(0, 0), again.done(0, 1)) == (True, False)
    assert len(again.rows) == 2


def test_metrics_of_whole_seeds(tmp_path: Path) -> None:
    (writer,) = writers(tmp_path, 1)
    writer.write([row(0, 0)])
    writer.add_metric("FID", {0: 1.0, 1: 3.0})
    writer.on_test_end(trainer(), Module())
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert metrics["FID"] == {"mean": 2.0, "std": pytest.approx(2**0.5), "worst": 3.0}
    assert metrics["error"]["mean"] == 1.0


def test_the_worst_accuracy_is_the_smallest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (writer,) = writers(tmp_path, 1)
    for case, right in enumerate((1.0, 0.0, 1.0)):
        metrics = {"accuracy with inversion": right, "accuracy of pixels": 0.5 + right / 4, "error": 2 * right}
        writer.write([{"seed": 0, "case": case, "metrics": metrics}], batch=case)
    writer.add_metric("accuracy of seeds", {0: 0.75, 1: 0.5})
    writer.on_test_end(trainer(), Module())
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert {name: s["worst"] for name, s in metrics.items() if "worst" in s} == {
        "accuracy of pixels": 0.5,
        "error": 2.0,
        "accuracy of seeds": 0.5,
    }
    printed = capsys.readouterr().out
    assert "| accuracy with inversion | 0.6667 |  |" in printed
    assert "worst" not in format_summary({name: s for name, s in metrics.items() if "worst" not in s})
    assert "| metric | mean ± std over seeds | worst |" in printed
    assert "| accuracy of seeds | 0.625 ± 0.18 | 0.5 |" in printed


def test_a_test_that_does_not_share_its_batches_is_refused_on_two_devices(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected one for this task, got 2"):
        ResultsWriter(str(tmp_path)).setup(trainer(0, 2), pl.LightningModule(), "test")


def test_a_sampler_that_pads_is_refused() -> None:
    module, data = Module(), torch.utils.data.TensorDataset(torch.zeros(3))
    padded = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    module._trainer = SimpleNamespace(test_dataloaders=torch.utils.data.DataLoader(data, sampler=padded))
    with pytest.raises(ConfigurationError, match="use_distributed_sampler: expected false"):
        module.on_test_start()


def test_batches_are_dealt_once() -> None:
    dealt = []
    for rank in range(3):
        module = Module()
        module._trainer = trainer(rank, 3)
        dealt.append([i for i in range(10) if module.mine(i)])
    assert sorted(i for part in dealt for i in part) == list(range(10))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


class TestOneFolder:
    """A folder has one writer; the rows in it are of one identity, whole, each once."""

    def test_two_runs_at_a_time_are_refused(self, tmp_path: Path) -> None:
        (first,) = writers(tmp_path, 1)
        with pytest.raises(ConfigurationError, match="one that is in use"):
            writers(tmp_path, 1)
        first.on_exception(trainer(), Module(), ValueError())
        writers(tmp_path, 1)

    def test_another_process_is_seen_and_its_death_frees_the_folder(self, tmp_path: Path) -> None:
        hold = f"from tasks.files import hold; from pathlib import Path; l = hold(Path({str(tmp_path)!r}))"
        other = subprocess.Popen(
            [sys.executable, "-c", hold + "; print('held', flush=True); import time; time.sleep(60)"],
            stdout=subprocess.PIPE,
        )
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            with pytest.raises(ConfigurationError, match="one that is in use"):
                writers(tmp_path, 1)
        finally:
            other.kill()
            other.wait()
            other.stdout.close()
        writers(tmp_path, 1)

    @pytest.mark.parametrize("name", ["results.json.tmp", "rows.jsonl.tmp", "config.yaml", "figure.png", ".lock"])
    def test_a_folder_with_a_link_is_refused(self, tmp_path: Path, name: str) -> None:
        outside, folder = tmp_path / "outside", tmp_path / "run"
        outside.write_text("mine")
        folder.mkdir()
        (folder / name).symlink_to(outside)
        with pytest.raises(ConfigurationError, match=f"without symbolic links, got one with '{name}'"):
            writers(folder, 1)
        assert outside.read_text() == "mine"
        assert [path.name for path in folder.iterdir()] == [name]

    def test_a_row_written_twice_counts_once(self, tmp_path: Path) -> None:
        (writer,) = writers(tmp_path, 1)
        for _ in range(2):
            writer.write([row(0, 0), row(0, 1)], batch=0)
        kill(writer)
        (again,) = writers(tmp_path, 1)
        assert again.done(0, 0)
        assert len(again.rows) == 2

    def test_rows_of_other_settings_are_put_aside_and_come_back_by_name(self, tmp_path: Path) -> None:
        (writer,) = writers(tmp_path, 1, {"model": {"steps": 1}})
        writer.write([row(0, 0)])
        kill(writer)
        (tmp_path / "rows.backup.jsonl").write_text("mine")
        (other,) = writers(tmp_path, 1, {"model": {"steps": 2}})
        assert not other.rows
        (kept,) = tmp_path.glob("earlier-*.jsonl")
        kill(other)
        kept.replace(tmp_path / "rows.jsonl")
        (back,) = writers(tmp_path, 1, {"model": {"steps": 1}})
        assert len(back.rows) == 1
        assert (tmp_path / "rows.backup.jsonl").read_text() == "mine"

    def test_rows_put_aside_are_never_lost(self, tmp_path: Path) -> None:
        """Settings that come and go, on two devices: all rows that were ever written are still there."""
        for turn in range(4):
            runs = writers(tmp_path, 2, {"model": {"steps": turn % 2}})
            for device, writer in enumerate(runs):
                writer.write([row(turn, device)], batch=device)
            kill(*runs)
        kept = [decoded(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines() if line]
        assert sorted((r["seed"], r["case"]) for r in kept if r) == [(turn, d) for turn in range(4) for d in range(2)]

    def test_results_of_other_settings_are_put_aside(self, tmp_path: Path) -> None:
        """Whoever looks while the next run is on its way, or was killed, must not take them for its results."""
        for steps in (1, 1, 2):
            (writer,) = writers(tmp_path, 1, {"model": {"steps": steps}})
            assert (tmp_path / "results.json").exists() == (len(writer.rows) == 1)
            if steps == 1:
                writer.write([row(0, 0)])
                writer.on_test_end(trainer(), Module())
                document = (tmp_path / "results.json").read_text()
            kill(writer)
        (kept,) = tmp_path.glob("earlier-*.json")
        assert kept.read_text() == document
        assert kept.with_suffix(".jsonl").exists()

    def test_rows_of_a_device_that_read_other_files_are_kept(self, tmp_path: Path) -> None:
        (first,) = writers(tmp_path, 1, {"model": {"steps": 1}})
        first.write([row(0, 0)])
        other = "\n".join(['{"identity": "other"}', encoded(row(0, 1))])
        (tmp_path / "rows.1.jsonl").write_text(other)
        first.on_test_end(trainer(0, 2), Module())
        (kept,) = tmp_path.glob("earlier-*.jsonl")
        assert kept.read_text() == other

    def test_seconds_are_of_all_parts(self, tmp_path: Path) -> None:
        (writer,) = writers(tmp_path, 1)
        time.sleep(0.2)
        writer.write([row(0, 0)])
        kill(writer)
        (again,) = writers(tmp_path, 1)
        assert 0.2 <= again.seconds < 60

    def test_a_full_disk_is_one_line_and_loses_no_earlier_row(self, tmp_path: Path) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full on this system")
        (writer,) = writers(tmp_path, 1)
        writer.write([row(0, 0)])
        path = tmp_path / "rows.jsonl"
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to("/dev/full")
        with pytest.raises(StorageError, match=r"rows.jsonl: expected a file that can be written: No space"):
            writer.write([row(0, 1)], batch=1)
        assert len(writer.rows) == 1
        path.unlink()
        path.write_bytes(kept)
        kill(writer)
        (again,) = writers(tmp_path, 1)
        assert len(again.rows) == 1

    def test_a_missing_batch_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Two(Problems):
            batches = 2

            def batch(self, seed: int, number: int) -> Any:
                raise NotImplementedError

        (writer,) = writers(tmp_path, 1)
        writer.write([row(0, 0)])
        run = trainer()
        run.datamodule = Two([0])
        writer.on_test_end(run, Module())
        document = json.loads((tmp_path / "results.json").read_text())
        assert (document["complete"], document["missing_batches"]) == (False, 1)
        assert "INCOMPLETE: 1 of 2 batches" in capsys.readouterr().out


class TestDamage:
    def test_single_bit_flips(self, tmp_path: Path) -> None:
        """Rows read after a flip are rows that were written; the rest is done again."""
        (writer,) = writers(tmp_path, 1)
        for batch in range(4):
            writer.write([row(0, 2 * batch + i, 0.1 * i + batch) for i in range(2)], batch=batch)
        whole = {(r["seed"], r["case"]): r for r in writer.rows}
        kill(writer)
        path = tmp_path / "rows.jsonl"
        content = path.read_bytes()
        draw = random.Random(0)
        for _ in range(150):
            place, bit = draw.randrange(len(content)), draw.randrange(8)
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            (again,) = writers(tmp_path, 1)
            assert all(whole[r["seed"], r["case"]] == r for r in again.rows)
            assert len(again.rows) >= 6 or place < content.index(b"\n\n") + 1
            kill(again)

    @pytest.mark.parametrize("flips", [10, pytest.param(3000, marks=pytest.mark.slow)])
    def test_bits_of_every_file_of_a_folder(self, tmp_path: Path, flips: int) -> None:
        """A run of 512 cases with one bit flipped is refused or right where it is read, and goes on to the same."""
        run_of_512_cases(tmp_path)
        whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert {"rows.jsonl", "results.json"} <= whole.keys()
        expected = cases(read_document(tmp_path / "results.json"))
        places = [(name, place) for name, content in whole.items() for place in range(len(content))]
        draw = random.Random(0)
        refused = 0
        for name, place in draw.sample(places, flips):
            for path in tmp_path.iterdir():
                path.unlink()
            for other, content in whole.items():
                (tmp_path / other).write_bytes(content)
            damaged = bytearray(whole[name])
            damaged[place] ^= 1 << draw.randrange(8)
            (tmp_path / name).write_bytes(damaged)
            try:
                assert cases(read_document(tmp_path / "results.json")) == expected
            except ConfigurationError:
                refused += 1
            run_of_512_cases(tmp_path)
            document = read_document(tmp_path / "results.json")
            assert document["complete"]
            assert cases(document) == expected
        assert refused > flips // 4

    @pytest.mark.parametrize(
        "change",
        [{"batch": None}, {"case": [0]}, {"metrics": None}, {"metrics": {"error": "x"}}, {"run_seconds": "x"}],
        ids=str,
    )
    def test_rows_with_a_checksum_that_no_test_wrote(self, tmp_path: Path, change: dict[str, Any]) -> None:
        (writer,) = writers(tmp_path, 1)
        writer.write([row(0, 0)])
        kill(writer)
        path = tmp_path / "rows.jsonl"
        other = {**writer.rows[0], "batch": 1, **change}
        path.write_text(path.read_text() + encoded(other) + "\n" + encoded({"seed": 0}) + "\n")
        (again,) = writers(tmp_path, 1)
        assert again.rows == writer.rows
        again.on_test_end(trainer(), Module())

    @pytest.mark.parametrize("name", ["rows.jsonl", "rows.1.jsonl"])
    def test_folders_in_place_of_files(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        with pytest.raises(StorageError, match=f"{name}: expected a file that can be written"):
            writers(tmp_path, 1)

    @pytest.mark.parametrize("path", ["file", "file/below", "a\0b"])
    def test_folders_that_cannot_be_made(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match=r"expected a (file that can be written|folder to write to)"):
            writers(tmp_path / path, 1)

    @pytest.mark.parametrize("line", [b"\xff\xfe", b"[1, 2]", b"7", b'{"seed": 0}', b"[" * 100_000, b""])
    def test_lines_that_are_no_rows(self, tmp_path: Path, line: bytes) -> None:
        (writer,) = writers(tmp_path, 1)
        writer.write([row(0, 0)])
        kill(writer)
        path = tmp_path / "rows.jsonl"
        path.write_bytes(path.read_bytes() + line + b"\n" + encoded(row(0, 5)).encode()[:20])
        (again,) = writers(tmp_path, 1)
        assert len(again.rows) == 1

    def test_a_file_is_replaced_whole_or_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        write_whole(path, "old")
        with pytest.raises(StorageError, match="expected a file that can be written"):
            write_whole(tmp_path / "no folder" / "x", "new")
        write_whole(path, "new")
        assert path.read_text() == "new"
        assert shown(tmp_path) == ["results.json"]


class TestIdentity:
    """What determines the numbers, and nothing else."""

    CONFIG: Mapping[str, Any] = {"model": {"steps": 3, "figure": "a.png"}, "data": {"seeds": [0]}, "seed_everything": 0}

    def test_output_does_not_matter(self) -> None:
        quiet = {"verbose": False, "trainer": {"profiler": "simple", "default_root_dir": "elsewhere", "devices": 2}}
        model = {"model": {"steps": 3, "figure": "b.png"}}
        assert identity({**self.CONFIG, **quiet, **model}) == identity(self.CONFIG)

    @pytest.mark.parametrize(
        "change",
        [
            {"model": {"steps": 4}},
            {"data": {"seeds": [1]}},
            {"seed_everything": 1},
            {"trainer": {"precision": 16}},
            {"trainer": {"plugins": [{"class_path": "lightning.pytorch.plugins.HalfPrecision"}]}},
            {"trainer": {"strategy": {"class_path": "FSDPStrategy", "init_args": {"mixed_precision": "bf16"}}}},
        ],
        ids=lambda change: str(next(iter(change.values()))),
    )
    def test_settings_matter(self, change: dict[str, Any]) -> None:
        assert identity({**self.CONFIG, **change}) != identity(self.CONFIG)

    def test_the_content_of_a_file_matters_and_not_its_place(self, tmp_path: Path) -> None:
        found = []
        for folder, content in (("a", "1"), ("b", "1"), ("a", "2")):
            path = tmp_path / folder / "weights"
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            with recording():
                checksum(path)
                found.append(identity(self.CONFIG))
        assert found[0] == found[1] != found[2]

    @pytest.mark.parametrize("settings", [("a/weights", "b/weights.pt"), ("a", "b"), ("x", "y")])
    def test_two_files_do_not_change_places(
        self, tmp_path: Path, settings: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Named by their paths, by their folders, or not at all."""
        monkeypatch.chdir(tmp_path)
        config = {"model": {"first": settings[0], "second": [settings[1]]}}
        found = []
        for contents in ("12", "21", "12"):
            with recording():
                for folder, content in zip("ab", contents, strict=True):
                    path = Path(folder) / ("weights.pt" if folder == "b" or settings[0] != "x" else "other")
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(content)
                    checksum(path)
                found.append(identity(config))
        assert found[0] == found[2] != found[1]

    def test_weights_given_to_the_trainer_matter(self, tmp_path: Path) -> None:
        path = tmp_path / "last.ckpt"
        path.write_text("1")
        one = identity({**self.CONFIG, "ckpt_path": str(path)})
        path.write_text("2")
        assert len({one, identity({**self.CONFIG, "ckpt_path": str(path)}), identity(self.CONFIG)}) == 3

    def test_code_of_the_user_matters(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of the package of a class that is named, and nothing beside it."""
        package = tmp_path / "package_of_a_user"
        package.mkdir()
        names = ("__init__", "energies", "helpers")
        for name in names:
            (package / f"{name}.py").write_text("x = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module("package_of_a_user")
        config = {
            "model": {"energy": {"class_path": "package_of_a_user.energies.Energy"}},
            "data": {"file": "package_of_a_user"},
        }
        found = [identity(config)]
        for name in (*names, "../beside"):
            (package / f"{name}.py").write_text("x = 1000\n")
            found.append(identity(config))
        assert found[3] == found[4]
        assert len(set(found)) == 4

    def test_what_code_of_the_user_imports_matters(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also what lies beside a module alone, and what only the header of a network names."""
        sources = {
            "net_of_a_user": "from layers_of_a_user import K\nclass Net: ...\n",
            "layers_of_a_user": "import numbers_of_a_user\nK = 1\n",
            "numbers_of_a_user": "x = 1\n",
            "other_of_a_user": "x = 1\n",
        }
        for name, text in sources.items():
            (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / ".#net_of_a_user.py").symlink_to("nowhere")
        monkeypatch.syspath_prepend(tmp_path)
        for name in sources:
            importlib.import_module(name)
        file = tmp_path / "weights.safetensors"
        save_file({"x": torch.zeros(1)}, file, {"network": "net_of_a_user.Net"})
        named = {"model": {"network": {"class_path": "net_of_a_user.Net"}}}
        for config, read in ((named, False), (self.CONFIG, True)):
            with recording():
                if read:
                    checksum(file)
                found = [identity(config)]
                for name in sources:
                    path = tmp_path / f"{name}.py"
                    path.write_text(path.read_text() + "# more\n")
                    found.append(identity(config))
            assert len(set(found)) == 4
            assert found[3] == found[4]

    def test_arguments_of_the_user_that_are_called_like_ours_matter(self) -> None:
        for name in ("figure", "progress"):
            models = ({"class_path": "a.Model", "init_args": {name: x}} for x in ("0.1", "0.9"))
            assert len({identity({"model": model}) for model in models}) == 2
            models = ({"class_path": "tasks.a.Model", "init_args": {name: x}} for x in ("0.1", "0.9"))
            assert len({identity({"model": model}) for model in models}) == 1

    def test_versions_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = identity(self.CONFIG)
        monkeypatch.setattr("trivgeo.__version__", "0.0.0")
        assert identity(self.CONFIG) != before


@pytest.mark.parametrize("name", ["../x.png", "/tmp/x.png", "a/b.png", "..", "", "a\\b.png"])
def test_pictures_stay_in_the_folder_of_the_run(name: str) -> None:
    module = Module()
    with pytest.raises(ConfigurationError, match="figure: expected the name of a file, without folders"):
        module.figure = name


@pytest.mark.parametrize("name", ["figure", "figure.xyz", "figure.png.txt", ".png/"])
def test_pictures_are_of_a_kind_that_can_be_written(name: str) -> None:
    with pytest.raises(ConfigurationError, match="figure: expected"):
        Module().figure = name


def test_a_batch_whose_picture_is_missing_is_due(tmp_path: Path) -> None:
    (writer,) = writers(tmp_path, 1)
    writer.write([row(0, 0)])
    module, batch = Module(), SimpleNamespace(seed=0, number=0)
    module._trainer = trainer()
    writer.setup(module._trainer, module, "test")
    assert not module.is_due(batch, 0)
    module.figure = "figure.png"
    assert module.is_due(batch, 0)
    assert not module.is_due(batch, 1)
    (tmp_path / "figure.png").write_bytes(b"")
    assert not module.is_due(batch, 0)
    writer.teardown(module._trainer, module, "test")
    assert module.is_due(batch, 0)
