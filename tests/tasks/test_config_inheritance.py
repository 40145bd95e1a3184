"""Configuration files that lie on others: what wins, and what is no such file."""

from pathlib import Path

import pytest

from tasks.config_inheritance import merge, read, resolved
from tasks.sweep import Sweep
from trivgeo.errors import ConfigurationError


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


class TestMerge:
    def test_what_stands_above_wins(self) -> None:
        assert merge({"a": {"b": 1, "c": [1, 2]}, "d": 3}, {"a": {"c": [4]}, "e": None}) == {
            "a": {"b": 1, "c": [4]},
            "d": 3,
            "e": None,
        }

    def test_another_class_drops_the_arguments_of_the_old_one(self) -> None:
        below = {"class_path": "A", "init_args": {"n": 1, "m": 2}}
        assert merge(below, {"class_path": "B", "init_args": {"k": 3}}) == {"class_path": "B", "init_args": {"k": 3}}
        assert merge(below, {"class_path": "A", "init_args": {"n": 3}})["init_args"] == {"n": 3, "m": 2}
        assert merge(below, {"init_args": {"n": 3}}) == {"class_path": "A", "init_args": {"n": 3, "m": 2}}


class TestRead:
    def test_the_last_base_is_the_highest_and_the_file_above_all(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            low="{a: 1, b: 1, c: 1, d: 1}",
            middle="{base: [low.yaml], b: 2, c: 2, d: 2}",
            side="{c: 3, d: 3}",
            top="{base: [middle.yaml, side.yaml], d: 4, name: runs/$name}",
        )
        assert read(tmp_path / "top.yaml") == {"a": 1, "b": 2, "c": 3, "d": 4, "name": f"runs/{tmp_path.name}/top"}

    def test_one_file_below_two_others(self, tmp_path: Path) -> None:
        """That is no ring."""
        write(
            tmp_path, low="a: 1", left="base: [low.yaml]", right="base: [low.yaml]", top="base: [left.yaml, right.yaml]"
        )
        assert read(tmp_path / "top.yaml") == {"a": 1}

    @pytest.mark.parametrize("ring", [("a",), ("a", "b"), ("a", "b", "c")], ids=len)
    def test_files_that_lie_on_themselves(self, ring: tuple[str, ...], tmp_path: Path) -> None:
        write(
            tmp_path, **{name: f"base: [{other}.yaml]" for name, other in zip(ring, ring[1:] + ring[:1], strict=True)}
        )
        write(tmp_path, top="base: [a.yaml]")
        for name in (*ring, "top"):
            with pytest.raises(ConfigurationError, match="lie on themselves"):
                read(tmp_path / f"{name}.yaml")

    def test_a_ring_by_another_path(self, tmp_path: Path) -> None:
        write(tmp_path, a=f"base: [../{tmp_path.name}/./a.yaml]")
        with pytest.raises(ConfigurationError, match="lie on themselves"):
            read(tmp_path / "a.yaml")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("base: low.yaml", "expected a list of files, got 'low.yaml'"),
            ("base: [1]", "expected a list of files"),
            ("base: [none.yaml]", "does not exist"),
            ("[1, 2]", "expected names with values, such as `trainer: ...`, got a list"),
            ("5", "expected names with values, such as `trainer: ...`, got a number"),
            ("rows: []\ncolumns: []", "expected a configuration of one run, got a sweep"),
            ("a: [", "expected a configuration in YAML"),
            ("a: 2020-13-45", "expected a configuration in YAML: month must be"),
            ("a: {b: 1, c: 2, b: 3}", "expected every name once, got two ['b']"),
            ("a: &a [*a]", "expected a configuration that is no part of itself"),
        ],
    )
    def test_bad_files(self, text: str, reason: str, tmp_path: Path) -> None:
        write(tmp_path, a=text)
        with pytest.raises(ConfigurationError, match=reason.replace("[", r"\[")):
            read(tmp_path / "a.yaml")

    def test_merged_names_may_stand_above(self, tmp_path: Path) -> None:
        write(tmp_path, a="low: &low {n: 1, m: 2}\nhigh: {<<: *low, n: 3}")
        assert read(tmp_path / "a.yaml")["high"] == {"n": 3, "m": 2}

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="expected a file in YAML, got a folder"):
            read(tmp_path)

    def test_a_picture(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0")
        with pytest.raises(ConfigurationError, match="got a file that is no text"):
            read(tmp_path / "a.jpg")

    def test_settings_that_all_are_commented_out(self, tmp_path: Path) -> None:
        write(tmp_path, nothing="# a: 1", low="a: 1")
        with pytest.raises(ConfigurationError, match=r"nothing.yaml: expected a configuration with settings"):
            resolved(["test", "--config", f"{tmp_path}/nothing.yaml"])
        both = resolved(["test", "--config", f"{tmp_path}/low.yaml", "--config", f"{tmp_path}/nothing.yaml"])
        assert both == ["test", "--config", "a: 1\n", "--config", "{}\n"]

    def test_command_line(self, tmp_path: Path) -> None:
        write(tmp_path, low="a: 1", top="base: [low.yaml]")
        file = str(tmp_path / "top.yaml")
        for option in (["--config", file], ["-c", file], [f"--config={file}"]):
            text = " ".join(resolved(["test", *option, "--b=2"]))
            assert "a: 1" in text
            assert "base" not in text
            assert text.startswith("test")
            assert text.endswith("--b=2")


def test_paths_that_the_system_refuses(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "nul.yaml").write_text('base: ["a\\0b"]')
    (tmp_path / "long.yaml").write_text(f"base: [{'x' * 300}]")
    for path in ("x" * 300, "a\0b", *(str(tmp_path / name) for name in ("one", "nul.yaml", "long.yaml"))):
        with pytest.raises(ConfigurationError, match=r"expected (a|the path of a) configuration"):
            read(path)


def test_files_that_many_name(tmp_path: Path) -> None:
    """Forty levels that name the one below twice: read 10^12 times over, they took as long as one waited."""
    levels = {f"level{i}": f"{{base: [level{i - 1}.yaml, level{i - 1}.yaml], k{i}: {i}}}" for i in range(1, 41)}
    write(tmp_path, level0="k0: 0", **levels)
    assert read(tmp_path / "level40.yaml") == {f"k{i}": i for i in range(41)}


def test_aliases_of_aliases(tmp_path: Path) -> None:
    """Nine levels of nine stand for 387 million values, and took as long as one waited."""
    levels = ["&a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"] + [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    listed = "\n".join(f"k{i}: {level}" for i, level in enumerate(levels))
    maps = ["&b0 {x: 1, y: 2}"] + [f"&b{i} {{x: *b{i - 1}, y: *b{i - 1}}}" for i in range(1, 30)]
    mapped = "\n".join(f"k{i}: {level}" for i, level in enumerate(maps))
    merged = "\n".join(
        ["k0: &c0 {x: 1}", *(f"k{i}: &c{i} {{<<: [{', '.join([f'*c{i - 1}'] * 9)}]}}" for i in range(1, 9))]
    )
    for text in (listed, mapped, merged):
        write(tmp_path, bomb=text, above="base: [bomb.yaml]")
        for name in ("bomb", "above"):
            with pytest.raises(ConfigurationError, match=r"bomb\.yaml: .*aliases of aliases"):
                read(tmp_path / f"{name}.yaml")
        with pytest.raises(ConfigurationError, match="aliases of aliases"):
            Sweep.read(str(tmp_path / "bomb.yaml"))
        with pytest.raises(ConfigurationError, match="aliases of aliases"):
            resolved(["test", f"--data={text}"])
    option = f"[{', '.join(levels)}]"
    for arguments in ([f"--data.seeds={option}"], ["--data.seeds", option], [f"--model=&x {option}"]):
        with pytest.raises(ConfigurationError, match="aliases of aliases"):
            resolved(["test", *arguments])
    write(tmp_path, fine="{seeds: &s [1, 2], data: {seeds: *s}, model: {<<: &m {a: 1}, b: *m}}")
    assert read(tmp_path / "fine.yaml") == {
        "seeds": [1, 2],
        "data": {"seeds": [1, 2]},
        "model": {"a": 1, "b": {"a": 1}},
    }
    assert resolved(["--names=a & b * c"]) == ["--names=a & b * c"]
