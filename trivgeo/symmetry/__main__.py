"""``trivgeo symmetries "u_t + u*u_x = 0.1*u_xx"`` (``python -m trivgeo.symmetry``) prints an equation's symmetries.

``trivgeo symmetries --data solutions.hdf5`` prints those of the equation of solutions in a file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trivgeo._text import OneLineParser, ending_quietly
from trivgeo.actions.files import read_solutions
from trivgeo.errors import AlgebraError, ConfigurationError, TrivgeoError
from trivgeo.expressions import exact
from trivgeo.symmetry import conservation_laws, find_symmetries, symmetries_from_data
from trivgeo.symmetry.discrete import discrete_symmetries
from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of

_NUM_READ = 100  # solutions that are read from a file


@dataclass(frozen=True)
class _Part:
    """A part of the report, in each of the formats.

    Attributes:
        title: a line above it.
        lines: text.
        latex: formulas, without dollar signs; empty if ``lines`` are words.
        document: values that JSON can hold.
    """

    title: str
    lines: Sequence[str]
    latex: Sequence[str] = ()
    document: Any = None


@ending_quietly()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a report; the status is 2 if the equation or the file is refused."""
    parser = OneLineParser(
        prog="trivgeo symmetries", description="Point symmetries of equations, their algebra, and conservation laws."
    )
    parser.add_argument("equations", nargs="*", help="such as 'u_t + u*u_x = 0.1*u_xx' or \"y'' + y = 0\"")
    parser.add_argument("--data", metavar="FILE", help="solutions, HDF5 of PDEBench or The Well, in place of equations")
    parser.add_argument("--number", type=int, default=_NUM_READ, help="solutions that are read; default: %(default)s")
    parser.add_argument("--degree", type=int, help="search polynomials up to this degree only")
    parser.add_argument("--ansatz", nargs="*", default=[], help="functions that polynomials may be multiplied with")
    parser.add_argument(
        "--parameter",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="values of parameters; without them the result holds for generic ones",
    )
    parser.add_argument("--laws", action="store_true", help="conservation laws, too")
    parser.add_argument("--discrete", action="store_true", help="discrete symmetries, too, such as reflections")
    parser.add_argument("--optimal", action="store_true", help="an optimal system of one-dimensional subalgebras, too")
    parser.add_argument("--all", action="store_true", help="all of these")
    parser.add_argument("--format", choices=("text", "latex", "json"), default="text", help="default: text")
    options = parser.parse_args(arguments)
    if bool(options.equations) == bool(options.data):
        parser.error("expected equations, or --data FILE")
    if len(options.equations) > 1 and any("=" in (e.strip()[:1], e.strip()[-1:]) for e in options.equations):
        parser.error(f"expected each equation in quotes, got {len(options.equations)} words: {options.equations}")
    started = time.perf_counter()
    try:
        parts = _report(options)
    except TrivgeoError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.format == "json":
        document = {part.title: part.document for part in parts}
        source = {"data": options.data} if options.data else {"equations": options.equations}
        text = json.dumps({**source, **document}, indent=1, ensure_ascii=False)
    elif options.format == "latex":
        text = "\n\n".join(_latex(part) for part in parts)
    else:
        blocks = ["\n".join([f"{part.title}:", *part.lines]) for part in parts]
        text = "\n\n".join(
            [options.data or "\n".join(options.equations), *blocks, f"{time.perf_counter() - started:.1f} s"]
        )
    sys.stdout.write(text + "\n")
    return 0


def _report(options: argparse.Namespace) -> list[_Part]:
    """The parts that were asked for.

    Raises:
        TrivgeoError: the equations are refused.
    """
    if options.data:
        return _data_report(options)
    equations = _with_values(options.equations, options.parameter)
    found = find_symmetries(equations, options.degree, ansatz=options.ansatz)
    document: dict[str, Any] = {
        "dimension": found.dimension.size,
        "complete": found.is_complete,
        "statement": found.statement,
        "superposition": None if found.infinite_ideal is None else str(found.infinite_ideal),
        "generators": _documents(found),
    }
    parts = [_Part("symmetries", repr(found).splitlines(), [g.latex() for g in found], document)]
    return parts + _further_parts(options, equations, found)


def _data_report(options: argparse.Namespace) -> list[_Part]:
    """The parts that were asked for, of the equations of solutions in a file.

    Raises:
        TrivgeoError: the file or the solutions are refused.
    """
    solutions = read_solutions(options.data, number=options.number)
    data = symmetries_from_data(solutions.field, library=options.ansatz or options.degree)
    verdict = data.verdict
    unknowns = [
        f"{e.left.partition('_')[0]} is {name}" for e, name in zip(data.equations, solutions.names, strict=True)
    ]
    document: dict[str, Any] = {
        "dimension": data.dimension,
        "trusted": verdict.trusted,
        "reasons": list(verdict.reasons),
        "assumptions": list(verdict.assumptions),
        "equations": [e.text for e in data.equations],
        "unknowns": list(solutions.names),
        "statement": data.statement,
        "generators": _documents(data),
    }
    lines = [*repr(data).splitlines(), str(verdict), ", ".join(unknowns)]
    parts = [_Part("symmetries", lines, [g.latex() for g in data], document)]
    return parts + _further_parts(options, [e.text for e in data.equations], data.found)


def _documents(found: Any) -> list[dict[str, Any]]:
    """Generators as values that JSON can hold."""
    return [
        {"name": g.name, "components": {str(z): str(c) for z, c in zip(g.variables, g.components, strict=True)}}
        for g in found
    ]


def _further_parts(options: argparse.Namespace, equations: Sequence[Any], found: Any) -> list[_Part]:
    """The algebra, and the other parts that were asked for."""
    parts: list[_Part] = []
    if len(found) > 1 or (len(found) and (options.optimal or options.all)):
        parts += _algebra_parts(found, options.optimal or options.all)
    if options.discrete or options.all:
        parts.append(_discrete_part(equations))
    if options.laws or options.all:
        parts.append(_laws_part(equations))
    return parts


def _with_values(equations: Sequence[str], assignments: Sequence[str]) -> list[Any]:
    """The equations with numbers in place of parameters.

    Raises:
        ConfigurationError: an assignment is none, or the equations hold no such parameter.
    """
    if not assignments:
        return list(equations)
    residuals = residuals_of(list(equations))
    parameters = {s.name: s for s in EvolutionSystem(residuals).parameters}
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name not in parameters:
            known = ", ".join(parameters) or "none"
            raise ConfigurationError(
                f"parameter: expected NAME=VALUE of a parameter of the equations ({known}), got {assignment!r}"
            )
        values[parameters[name]] = exact(value, name)
    return [residual.subs(values) for residual in residuals]


def _algebra_parts(found: Any, is_optimal: bool) -> list[_Part]:
    """Brackets, the name of the algebra, and an optimal system, as far as there are any."""
    try:
        algebra = found.algebra
    except AlgebraError as error:
        return [_Part("brackets", [f"none: {error}"], document=None)]
    lines = repr(algebra).splitlines()
    brackets = dict(line.split(" = ", 1) for line in lines if " = " in line)
    parts = [_Part("brackets", [*lines, f"({algebra.convention})"], document=brackets)]
    entries = (x for block in algebra.structure_constants for row in block for x in row)
    held = sorted({symbol.name for x in entries for symbol in x.free_symbols})
    wanted = f"give values: --parameter {' '.join(f'{name}=1' for name in held)}"
    try:
        name = algebra.name()
        parts.append(_Part("algebra", [name], document=name))
    except ConfigurationError:  # it depends on the parameters
        parts.append(_Part("algebra", [wanted]))
    if is_optimal:
        title = "optimal system of lines"
        if held:
            return [*parts, _Part(title, [wanted])]
        try:
            found_lines = algebra.optimal_system()
        except AlgebraError as error:
            return [*parts, _Part(title, [f"none: {error}"])]
        latex = [line.latex(algebra.names) for line in found_lines]
        texts = [line.text(algebra.names) for line in found_lines]
        parts.append(_Part(title, texts, latex, texts))
    return parts


def _discrete_part(equations: Sequence[Any]) -> _Part:
    title = "discrete symmetries"
    try:
        texts = [symmetry.text for symmetry in discrete_symmetries(equations)]
    except ConfigurationError as error:
        return _Part(title, [f"unknown: {re.sub('^equation: ', '', str(error))}"], document=None)
    latex = [text.replace("->", "\\mapsto") for text in texts]
    return _Part(title, texts or ["none"], latex, texts)


def _laws_part(equations: Sequence[Any]) -> _Part:
    title = "conservation laws"
    try:
        laws = conservation_laws(equations)
    except (AlgebraError, ConfigurationError) as error:
        return _Part(title, [f"unknown: {re.sub('^equation: ', '', str(error))}"], document=None)
    entries = [
        {
            "density": str(law.density),
            "fluxes": list(map(str, law.fluxes)),
            "multipliers": list(map(str, law.multipliers)),
        }
        for law in laws
    ]
    return _Part(title, repr(laws).splitlines(), [law.latex() for law in laws], entries)


def _latex(part: _Part) -> str:
    if not part.latex:
        return "\n".join(f"% {line}" for line in [f"{part.title}:", *part.lines])
    rows = " \\\\\n".join(part.latex)
    return f"% {part.title}\n\\begin{{gather*}}\n{rows}\n\\end{{gather*}}"


if __name__ == "__main__":
    sys.exit(main())
