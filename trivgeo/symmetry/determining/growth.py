"""Candidate functions in symmetries, and the search in growing spaces of functions until all are found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy as sp

from trivgeo.symmetry.determining.ansatz import AnsatzSpace
from trivgeo.symmetry.determining.conditions import LinearForm
from trivgeo.symmetry.determining.dimension import Dimension, Jets
from trivgeo.symmetry.determining.random_points import RandomEvaluator, irrational_constants, random_values
from trivgeo.symmetry.determining.reconstruction import rational_functions
from trivgeo.symmetry.equations.equation import EvolutionSystem

Coefficients = tuple[sp.Expr, ...]

MAX_COLUMNS = 900
"""Largest number of unknown coefficients in one search."""

_MAX_FUNCTIONS = 60  # functions that polynomials are multiplied with
_MAX_OWN_FUNCTIONS = 10  # functions in the equations that are tried
_MAX_EXPONENT_DENOMINATOR = 12  # powers with a larger denominator in the exponent are not tried
_LOG_DERIVATIVES = {(sp.sin, sp.cos): sp.tan, (sp.sinh, sp.cosh): sp.tanh}  # up to signs and inverses
_OWN_KINDS = (sp.exp, sp.log, sp.Pow, sp.sin, sp.cos, sp.tan, sp.cot, sp.sinh, sp.cosh, sp.tanh, sp.coth)


@dataclass(frozen=True)
class Found:
    """Result of a search for symmetries.

    Attributes:
        generators: a basis of the symmetries found, without superposition.
        superposition: members of the superposition ideal found.
        degree: degree of the polynomials.
        functions: functions that the polynomials were multiplied with, other than 1.
    """

    generators: list[Coefficients]
    superposition: list[Coefficients]
    degree: int
    functions: tuple[sp.Expr, ...]


def grow(system: EvolutionSystem, conditions: Sequence[LinearForm], jets: Jets, dimension: Dimension) -> Found:
    """Search in growing spaces of functions until the number of symmetries is the dimension."""
    linear = jets.linear
    spaces: list[tuple[int, AnsatzSpace, int, tuple[sp.Expr, ...]]] = []
    for functions, degree in _spaces(system, conditions, jets, dimension):
        space = AnsatzSpace(system, conditions, jets, functions, degree, linear)
        if len(space.columns) > MAX_COLUMNS:
            continue
        if not spaces or space.count > spaces[-1][0]:
            spaces.append((space.count, space, degree, tuple(functions[1:])))
        if dimension.size is not None and space.count >= dimension.size:
            break
    for _, space, degree, functions in reversed(spaces):
        solution = space.solve()
        if solution is not None:
            return Found(solution[0], solution[1], degree, functions)
    return Found([], [], 1, ())


def _spaces(
    system: EvolutionSystem, conditions: Sequence[LinearForm], jets: Jets, dimension: Dimension
) -> Iterator[tuple[list[sp.Expr], int]]:
    """Yield the functions and degrees of one search after the other, simple ones first."""
    one = [sp.S.One]
    for degree in (1, 2):
        yield one, degree
    if dimension.size is None:
        return
    yield one, 3
    families, sure = _spectral(system, jets, dimension)
    spectral = _products(families)
    # roots of numbers may not exist modulo a prime: families without roots of parameters come first
    plain = [family for family in families if not _has_roots(family, system.parameters)]
    choices = [[family for family in plain if family in sure], sure, plain, families]
    for functions in dict.fromkeys(tuple(_products(choice)) for choice in choices):
        if len(functions) == 1:
            continue
        for degree in (1, 2, 3, 4, 5) if len(jets.variables) == 2 else (1, 2, 3):
            yield list(functions), degree
    yield one, 4
    fractional = _products(_fractional(system))
    if len(fractional) > 1:
        for degree in (1, 2, 3):
            yield fractional, degree
    own = _own(system, conditions)
    if len(own) > 1:
        combined = _products([own, spectral])
        for degree in (1, 2, 3):
            yield combined, degree
    for degree in range(5, 11 if len(jets.variables) == 2 else 7):
        yield one, degree


def _products(families: Sequence[Sequence[sp.Expr]]) -> list[sp.Expr]:
    """All products of one function from each family, 1 first."""
    result = {sp.powsimp(sp.Mul(*factors)): None for factors in itertools.product(*families)}
    return list(result)[:_MAX_FUNCTIONS]


def _has_roots(functions: Sequence[sp.Expr], parameters: Sequence[sp.Symbol]) -> bool:
    """Whether functions hold fractional powers of parameters."""
    powers = {
        power for f in functions for power in f.atoms(sp.Pow) if power.exp.is_Rational and not power.exp.is_Integer
    }
    return any(power.base.free_symbols & set(parameters) for power in powers)


def _fractional(system: EvolutionSystem) -> list[list[sp.Expr]]:
    r"""For each variable powers of it with fractional exponents, suggested by exponents in the equations.

    An exponent -15/7 suggests all sevenths, 2 - a with a parameter a multiples of a / 2.
    """
    families = []
    for variable in system.coordinates:
        powers = {p.exp for right in system.right for p in right.atoms(sp.Pow) if p.base == variable}
        found: dict[sp.Expr, None] = {sp.S.One: None}
        for exponent in sorted(powers, key=sp.default_sort_key):
            constant, rest = exponent.as_independent(*system.parameters, as_Add=True)
            if not exponent.free_symbols <= set(system.parameters):
                continue
            if rest != 0:
                halves = [rest / 2, -rest / 2, rest, -rest]
                found |= dict.fromkeys(variable ** (half - 1) for half in halves)
            elif constant.is_Rational and 1 < constant.q <= _MAX_EXPONENT_DENOMINATOR:
                found |= dict.fromkeys(variable ** (sp.Rational(k, constant.q) - 1) for k in range(1, constant.q))
        if len(found) > 1:
            families.append(list(found))
    return families


def _own(system: EvolutionSystem, conditions: Sequence[LinearForm]) -> list[sp.Expr]:
    """Functions of the variables in the equations, their inverses, and their logarithmic derivatives."""
    variables = set(system.coordinates)
    found: dict[sp.Expr, None] = {sp.S.One: None}
    for right in system.right:
        for atom in sorted(right.atoms(*_OWN_KINDS), key=sp.default_sort_key):
            if atom.free_symbols & variables and atom.free_symbols <= variables | set(system.parameters):
                if atom.is_polynomial(*variables):
                    continue
                found[atom] = None
                if not isinstance(atom, sp.log):
                    found[1 / atom] = None
                ratio = next((f for kinds, f in _LOG_DERIVATIVES.items() if isinstance(atom, kinds)), None)
                if ratio is not None:
                    found |= dict.fromkeys((ratio(atom.args[0]), 1 / ratio(atom.args[0])))
    return list(found)[:_MAX_OWN_FUNCTIONS]


def _spectral(
    system: EvolutionSystem, jets: Jets, dimension: Dimension
) -> tuple[list[list[sp.Expr]], list[list[sp.Expr]]]:
    """For each variable z exponentials or powers with the eigenvalues of d/dz or (z - a) d/dz on the symmetries.

    The second list has the families for which derivatives of symmetries are symmetries, so that these are eigenvalues
    of a map of the space to itself.
    """
    families, sure = [], []
    order = dimension.order
    for position, variable in enumerate(jets.variables):
        shifts = [None, sp.S.Zero, *_shifts(system, variable)]
        for shift in shifts:
            found = _eigenvalues(system, jets, position, order, shift)
            if found is None:
                continue
            roots, keeps = found
            family = [sp.S.One]
            family += _exponentials(variable, roots) if shift is None else _powers(variable - shift, roots)
            families.append(family)
            if keeps:
                sure.append(family)
            break
    return families, sure


def radicands_of_rates(system: EvolutionSystem, jets: Jets, dimension: Dimension) -> list[sp.Expr]:
    """Return the radicands, up to squares, of eigenvalues that are square roots of functions of the parameters."""
    found: dict[sp.Expr, None] = {}
    for position in range(len(jets.variables)):
        roots, keeps = _eigenvalues(system, jets, position, dimension.order, None) or ({}, False)
        for root in roots if keeps else ():
            square = sp.fraction(sp.together(sp.expand(root**2)))
            number, factors = sp.factor_list(square[0] * square[1])
            odd = sp.Mul(*(factor for factor, power in factors if power % 2))
            if odd.free_symbols:
                sizes = sp.factorint(abs(number.p * number.q))
                found[sp.Mul(*(prime for prime, power in sizes.items() if power % 2)) * odd] = None
    return list(found)


def _shifts(system: EvolutionSystem, variable: sp.Symbol) -> list[sp.Expr]:
    """The zeros of linear functions of the variable in bases of powers and in logarithms."""
    found: dict[sp.Expr, None] = {}
    for right in system.right:
        for atom in right.atoms(sp.Pow, sp.log):
            base = atom.args[0]
            if base.has(variable) and base.is_Add and sp.diff(base, variable, 2) == 0:
                zero = -base.subs(variable, 0) / sp.diff(base, variable)
                if not zero.free_symbols - set(system.parameters) and zero != 0:
                    found[zero] = None
    return sorted(found, key=sp.default_sort_key)


def _eigenvalues(
    system: EvolutionSystem, jets: Jets, position: int, order: int, shift: sp.Expr | None
) -> tuple[dict[sp.Expr, int], bool] | None:
    """Eigenvalues with multiplicities, and whether derivatives of symmetries are symmetries.

    ``None`` if the characteristic polynomial differs between points.
    """

    def spectrum(prime: int, fixed: dict[sp.Expr, int], seed: int = 11) -> tuple[list[int], bool]:
        about = None
        if shift is not None:
            about = int(RandomEvaluator((), 0, 1, prime, 0, fixed, system.parameters)(shift)[0, 0])
        return jets.spectrum(position, order, prime, fixed, seed, about)

    generic = random_values(system.parameters, jets.prime, seed=5)
    first, keeps = spectrum(jets.prime, generic)
    if first != spectrum(jets.prime, generic, 12)[0]:
        return None
    z = sp.Symbol("z")
    if system.parameters or irrational_constants(system.right):
        return _guessed(system, first, generic, jets.prime), keeps
    numbers = rational_functions(lambda prime, fixed: [spectrum(prime, at)[0] for at in fixed], (), jets.primes)
    if numbers is None:
        return {}, keeps
    return dict(sp.roots(sp.Poly(numbers, z), cubics=False, quartics=False).items()), keeps


def _guessed(
    system: EvolutionSystem, polynomial: list[int], fixed: dict[sp.Expr, int], prime: int
) -> dict[sp.Expr, int]:
    """Eigenvalues that are simple multiples of products of parameters, or square roots of such."""
    found: dict[sp.Expr, int] = {}
    multiples = [sp.Rational(a, b) for b in (1, 2, 3, 4) for a in range(-8, 9) if sp.gcd(a, b) == 1]
    multiples += [sign * m**2 for m in multiples if m > 0 and m**2 not in multiples for sign in (1, -1)]
    products = {sp.S.One}
    for powers in itertools.product((-2, -1, 0, 1, 2), repeat=len(system.parameters)):
        if sum(map(abs, powers)) <= 2:
            products.add(sp.Mul(*(s**k for s, k in zip(system.parameters, powers, strict=True))))
    constants = {
        c for right in system.right for c in _coefficients(system, right) if c.free_symbols <= set(system.parameters)
    }
    sums = {1 + s for s in system.parameters} | {s - 1 for s in system.parameters}
    products |= constants | {1 / c for c in constants if c != 0} | sums
    products |= {c * d for c, d in itertools.combinations(sorted(constants, key=sp.default_sort_key), 2)}
    evaluate = RandomEvaluator((), 0, 1, prime, 0, fixed, system.parameters)
    for product in sorted(products, key=sp.default_sort_key):
        value = int(evaluate(product)[0, 0])
        for multiple in multiples:
            number = value * int(multiple.p) * pow(int(multiple.q), -1, prime) % prime
            if _at(polynomial, number, prime) == 0:
                found[multiple * product] = 1
            even = polynomial[(len(polynomial) - 1) % 2 :: 2]
            odd = polynomial[len(polynomial) % 2 :: 2]
            if _at(even, number, prime) == 0 == _at(odd, number, prime):
                root = sp.sqrt(multiple * product)
                root = sp.powdenest(root, force=True)
                found[root] = found[-root] = 1
    return found


def _coefficients(system: EvolutionSystem, right: sp.Expr) -> Iterator[sp.Expr]:
    """The coefficients of the functions of the variables in a right side."""
    variables = set(right.free_symbols) - set(system.parameters)
    total: dict[sp.Expr, sp.Expr] = {}
    for term in sp.Add.make_args(sp.expand(right)):
        coefficient, function = term.as_independent(*variables, as_Add=False)
        total[function] = total.get(function, sp.S.Zero) + coefficient
    yield from total.values()


def _at(polynomial: Sequence[int], number: int, prime: int) -> int:
    value = 0
    for coefficient in polynomial:
        value = (value * number + coefficient) % prime
    return value


def _exponentials(variable: sp.Symbol, roots: dict[sp.Expr, int]) -> list[sp.Expr]:
    found: dict[sp.Expr, None] = {}
    for root in sorted(roots, key=sp.default_sort_key):
        real, imaginary = root.expand().as_real_imag() if not root.free_symbols else _split(root)
        if imaginary == 0:
            found[sp.exp(real * variable)] = None
        else:
            if imaginary.could_extract_minus_sign():
                imaginary = -imaginary
            for wave in (sp.cos(imaginary * variable), sp.sin(imaginary * variable)):
                found[sp.exp(real * variable) * wave] = None
    found.pop(sp.S.One, None)
    return list(found)


def _split(root: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """Real and imaginary part of a number with real parameters, of which one is zero."""
    imaginary = sp.cancel(root / sp.I)
    return (sp.S.Zero, imaginary) if root.has(sp.I) else (root, sp.S.Zero)


def _powers(base: sp.Expr, roots: dict[sp.Expr, int]) -> list[sp.Expr]:
    """Candidates z^r, with the lowest r of those that differ by integers, and log(z), log(z)^2."""
    classes: dict[sp.Expr, sp.Expr] = {}
    waves: dict[sp.Expr, None] = {}
    for root in sorted(roots, key=sp.default_sort_key):
        real, imaginary = root.expand().as_real_imag() if not root.free_symbols else _split(root)
        if imaginary != 0:
            angle = (-imaginary if imaginary.could_extract_minus_sign() else imaginary) * sp.log(base)
            waves[base**real * sp.cos(angle)] = waves[base**real * sp.sin(angle)] = None
            continue
        rest = root - sp.floor(root) if root.is_number else root
        known = next((k for k in classes if (k - rest).is_integer), None)
        if known is None:
            classes[rest] = root
        elif (root - classes[known]).is_negative:
            classes[known] = root
    found = [base**r for r in classes.values() if not (r.is_integer and r.is_nonnegative)]
    return [*found, *waves, sp.log(base), sp.log(base) ** 2]
