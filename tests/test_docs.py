"""What README and docs say is so: code runs, links lead somewhere, tables are of kept results, names are there."""

import ast
import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))
from docs import hooks, tables  # noqa: E402
from trivgeo._applications import applications  # noqa: E402
from trivgeo.errors import DomainError, NonFiniteError  # noqa: E402

PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"^```py\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:trivgeo|python -m tasks) (?:test|fit|sweep)((?: --config[ =][\w./]+)+)")
# those whose code takes longer than tests may; `make docs` runs all
HEAVY = {
    "howto/augment.md",
    "howto/bridges.md",
    "howto/classifier.md",
    "howto/conditional.md",
    "howto/export.md",
    "howto/group.md",
    "howto/groupwise.md",
    "howto/learned.md",
    "howto/lightning.md",
    "howto/machines.md",
    "howto/mcmc.md",
    "howto/migration.md",
    "howto/own_images.md",
    "howto/own_task.md",
    "howto/photographs.md",
    "howto/score.md",
    "howto/sweep.md",
    "howto/volumes.md",
    "paths/equations.md",
    "paths/groups.md",
    "paths/images.md",
    "paths/scans.md",
    "results/transformed_pdes.md",
}
EXECUTED = [path for path in PAGES if BLOCK.search(path.read_text())]
PUBLIC = (
    *("groups", "actions", "pde", "inversion", "symmetry", "geoopt", "errors", "checks", "expressions", "verdict"),
    *("sde", "sde.noise", "sde.scores", "sde.processes", "sde.solvers", "sde.likelihood", "sde.resampling"),
    *("sde.mcmc", "pose_graph"),
    *("generative", "generative.paths", "generative.distributions"),
    *(
        "actions.files",
        "actions.image",
        "groups.action",
        "groups.harmonic",
        "groups.rotations",
        "groups.semidirect",
        "groups.from_generators",
        "groups.compilation",
        "groups.check_group",
        "groups.homogeneous",
        "inversion.agreement",
        "inversion.equivariant.equivariant_model",
        "registration.groupwise",
        "inversion.result",
        "inversion.stage",
        "generative.particles",
        "generative.equivariant",
        "generative.flow_map",
        "generative.history",
        "generative.spaces",
        "generative.model",
        "generative.kernel_density",
        "generative.posterior_draws",
        "pde.evolution",
        "pde.interpolation",
        "pde.losses",
        "symmetry.discrete",
        "symmetry.from_data.cloud_groups",
        "symmetry.from_data.solution_operator",
        "symmetry.order_reduction",
    ),
    *("groups.basis", "groups.inhomogeneous", "groups.nilpotent", "groups.unitary"),
    *("inversion.stages", "inversion.energies", "inversion.learned", "inversion.transformations"),
    *("features", "registration"),
    *(f"bridges.{name}" for name in ("deepinv", "hub", "kornia", "monai", "pytorch_ood", "sklearn", "torchvision")),
)


def named(path: Path) -> str:
    return str(path.relative_to(DOCS))


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if named(p) in HEAVY else []) for p in EXECUTED],
    ids=[named(path) for path in EXECUTED],
)
def test_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks of a page, one after another, and none of them says that something does not hold."""
    session: dict[str, object] = {}
    for block in BLOCK.findall(page.read_text()):
        # other tests of this process import the applications under their name in a checkout
        block = re.sub(r"^from trivgeo\.tasks\b", f"from {applications()}", block, flags=re.MULTILINE)
        exec(compile(block, str(page), "exec"), session)
    assert re.findall(r"^(?:.*: |tensor\()?False\)?$", capsys.readouterr().out, re.MULTILINE) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_code_is_python(page: Path) -> None:
    for block in SHOWN.findall(page.read_text()):
        assert "sep=" not in ast.unparse(ast.parse(block)), "the site's print knows no separator"


@pytest.mark.parametrize("script", sorted((DOCS / "tutorials").glob("*.py")), ids=lambda path: path.stem)
def test_cells_of_text_hold_no_code(script: Path) -> None:
    cells = re.findall(r"^# %% \[markdown\]\n(.*?)(?=^# %%|\Z)", script.read_text(), re.DOTALL | re.MULTILINE)
    assert [line for cell in cells for line in cell.splitlines() if line and not line.startswith("#")] == []
    assert (script.with_suffix(".md")).read_text() == f"<!-- script: {script.relative_to(ROOT)} -->\n"


@pytest.mark.parametrize("script", sorted((DOCS / "tutorials").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_holds_the_code_of_its_script(script: Path) -> None:
    """The code of its cells is that of the script, but for the end of the command line, in the same order."""
    notebook = json.loads(hooks.notebook_of(script.read_text(), script.stem))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    code = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    body = ast.parse(script.read_text()).body[1:]  # without the docstring
    kept = [ast.dump(node) for node in body if not ast.unparse(node).startswith("if __name__")]
    assert [ast.dump(node) for node in ast.parse(code).body][: len(kept)] == kept
    blocks = BLOCK.findall(hooks.page_of(script.read_text(), "a.ipynb"))
    assert [ast.dump(node) for block in blocks for node in ast.parse(block).body] == kept


def test_a_notebook_runs_in_a_kernel_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.chdir(tmp_path)
    shown: list[str] = []
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(Image=shown.append))
    cells = json.loads(hooks.notebook_of((DOCS / "tutorials" / "new_group.py").read_text(), "new_group"))["cells"]
    session: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], cell["id"], "exec"), session)
    assert shown == ["new_group.png"]
    assert (tmp_path / "new_group.png").read_bytes().startswith(b"\x89PNG")


def links(path: Path) -> Iterator[str]:
    """Targets of links and pictures, but for those on other machines."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if not target.startswith(("http://", "https://", "#")):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def test_pictures_are_shown() -> None:
    shown = {(page.parent / target).resolve() for page in TEXTS for target in links(page)}
    assert {path for path in (DOCS / "images").rglob("*.*") if path not in shown} == set()


def test_commands_name_configurations_of_ours() -> None:
    from tasks.config_inheritance import CONFIGS, find

    files = [
        (page.name, name)
        for page in TEXTS
        for options in COMMAND.findall(page.read_text())
        for name in re.findall(r"--config[ =]([\w./]+)", options)
        if name not in ("FILE", "mine.yaml") and f'"{name}").write_text' not in page.read_text()
    ]
    assert len(files) > 15
    assert [entry for entry in files if not find(entry[1]).resolve().is_relative_to(CONFIGS)] == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    pages = re.findall(r"[\w/]+\.md", text)
    site = yaml.safe_load(text)
    assert site["site_name"] == "trivgeo"
    assert max(len(tab) for entry in site["nav"] for tab in entry.values()) <= 9, "entries that are seen at a time"
    assert sorted(pages) == [named(path) for path in PAGES]


def found(name: str) -> Any:
    """The thing of a dotted name."""
    module, _, attribute = name.rpartition(".")
    return inspect.unwrap(getattr(importlib.import_module(module), attribute))


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    listed = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    names = {f"trivgeo.{part}.{name}" for part in PUBLIC for name in importlib.import_module(f"trivgeo.{part}").__all__}
    modules = {"trivgeo.checks", "trivgeo.expressions"}  # shown whole
    shown = {id(found(name)) for name in listed - modules}  # a name of two packages is shown once
    missing = {name for name in names if name.rpartition(".")[0] not in modules and id(found(name)) not in shown}
    unknown = {name for name in listed - names - modules if not name.startswith("trivgeo.symmetry.")}
    assert (missing, unknown) == (set(), set())


@pytest.mark.parametrize("page", tables.texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_those_of_kept_results(page: Path) -> None:
    """`python -m docs.tables` writes them."""
    assert tables.refreshed(page.read_text()) == page.read_text()


def test_every_typed_error_is_explained() -> None:
    """Troubleshooting has a line for each, with what to do."""
    found = [
        (base, name)
        for folder in ("trivgeo", "tasks")
        for path in (ROOT / folder).rglob("*.py")
        for name, base in re.findall(r"^class (\w+)\((\w+)\):$", path.read_text(), re.MULTILINE)
    ]
    names = {"TrivgeoError"}
    while more := {name for base, name in found if base in names} - names:
        names |= more
    names.remove("TrivgeoError")
    assert names > {error.__name__ for error in (DomainError, NonFiniteError)}
    lines = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \|$", (DOCS / "help" / "troubleshooting.md").read_text(), re.M)
    explained = {name: (means, do) for name, means, do in lines if name.endswith("Error")}
    assert explained.keys() == names
    assert all(len(means) > 20 and len(do) > 20 for means, do in explained.values())


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((DOCS / "results").glob("*.md"))], ids=lambda path: path.stem
)
def test_text_holds_no_measured_figures(page: Path) -> None:
    """They belong into tables, which are written from kept results."""
    text = re.sub(r"<!-- table: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$", "", text)
    if page.stem == "transformed_pdes":  # settings of the sets
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    figures = r"\d\.\d\d+|\d ?%|\d ?±|\de-\d|\d (?:ms|s|seconds|milliseconds|times)\b"
    assert re.findall(rf"[^\n]{{0,30}}(?:{figures})", text) == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


LONGEST_SENTENCE = 35  # words
# pronouns in place of a noun of the field
STAND_INS = re.compile(r"\b(that|those) of\b|\bwhat is (none|no|not)\b", flags=re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """The sentences of a page's prose, without code, tables, headings and formulas."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|\$\$.*?\$\$", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\s*([|#!<].*|[-*] |\d+\. )", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "X", re.sub(r"\]\([^)]*\)", "]", text))
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph)]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_sentences_are_short_and_name_their_subject(page: Path) -> None:
    said = sentences(page.read_text())
    assert [sentence for sentence in said if len(sentence.split()) > LONGEST_SENTENCE] == []
    assert [sentence for sentence in said if STAND_INS.search(sentence)] == []


def test_a_long_sentence_is_found() -> None:
    assert [len(s.split()) for s in sentences("One. `a b` two\nthree.\n\n```py\nx = 1\n```\n\n- four")] == [1, 3, 1]
    assert STAND_INS.search("the scale is that of the law")


def test_every_page_says_its_version_and_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config = hooks.on_config(SimpleNamespace(site_name="trivgeo", repo_url=None, extra={}))
    assert config.repo_url == project.get("urls", {}).get("Repository")
    header = '<span class="md-ellipsis">\n trivgeo\n </span> <span class="md-ellipsis">\n trivgeo\n </span>'
    said = hooks.on_post_page(header, config)
    assert said.count(f"trivgeo <small>{project['version']}</small>") == said.count("<small>") == 1
    assert "version" not in config.extra
    monkeypatch.setenv("MIKE_DOCS_VERSION", "1.0")
    assert hooks.on_config(config).extra["version"] == {"provider": "mike"}


def test_printed_text_is_wrapped_and_printed_tables_are_not() -> None:
    block = '<div class="language-text highlight"><pre><span></span><code>{}</code></pre></div>'
    text, table = "error: expected a number,\ngot  two", "a    1\nbc   20"
    assert hooks.on_page_content(block.format("\n")) == ""
    assert 'class="language-text' in hooks.on_page_content(block.format(text))
    assert 'class="language-table' in hooks.on_page_content(block.format(table))


def test_a_picture_is_a_link_to_itself_but_for_one_in_a_link() -> None:
    picture = '<img alt="a" src="../images/a.png" />'
    assert hooks.on_page_content(picture) == f'<a href="../images/a.png">{picture}</a>'
    assert hooks.on_page_content(f'<a href="b.html">{picture}</a>') == f'<a href="b.html">{picture}</a>'


def test_a_long_formula_is_broken_at_its_spaces() -> None:
    formula = '<div class="arithmatex">\\[{}\\]</div>'
    short, long = r"a = b, \quad c = d", r"\quad ".join(f"a_{i} = b_{i} + c_{i} + d_{i} + e_{i}," for i in range(8))
    assert hooks.on_page_content(formula.format(short)).count("<math") == 1
    assert hooks.on_page_content(formula.format(long)).count("<math") > 1
    assert hooks.lines_of(r"\mathrm{if \quad so}" + "x" * 90) == [r"\mathrm{if \quad so}" + "x" * 90]
