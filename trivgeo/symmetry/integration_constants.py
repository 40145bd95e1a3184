"""Constants of integration: in place of their exponentials and reciprocals, and real logarithms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import sympy as sp

from trivgeo.symmetry.numeric import INFINITE

__all__ = ["one_logarithm", "plain_constant", "real_logarithms", "with_limits"]

_MAX_MULTIPLE = 6  # of a constant in an exponent
_POINT = sp.Rational(1, 7)  # where limits are tried, apart by this


def plain_constant(z: sp.Expr, constant: sp.Symbol) -> sp.Expr:
    """With C in place of exp(n C), so that C may have either sign or be zero, where it has no other place.

    Args:
        z: a solution.
        constant: C.
    """

    def is_plain(e: sp.Expr, one_signed: bool) -> bool:
        roots = [p.base.as_base_exp() for p in e.atoms(sp.Pow) if not p.exp.is_Integer]
        inside = [f.as_base_exp()[0] for base, _ in roots for f in (sp.Mul.make_args(base) if one_signed else (base,))]
        return not e.has(sp.log(constant)) and constant not in inside

    # a root of a multiple of the constant has one sign of two, and is taken where nothing else is left
    for one_signed, n in itertools.product((True, False), range(_MAX_MULTIPLE, 0, -1)):
        changed = sp.simplify(z.subs(constant, sp.log(constant) / n))
        # a product of roots is the root of a product, up to its sign; both signs are solutions
        whole = sp.sqrt(sp.simplify(changed**2))
        for candidate in (changed, -whole if changed.could_extract_minus_sign() else whole):
            if z.has(sp.exp) and is_plain(candidate, one_signed):
                turned = sp.simplify(candidate.subs(constant, 1 / constant))
                is_better = candidate.subs(constant, 0).has(*INFINITE) and not turned.subs(constant, 0).has(*INFINITE)
                return turned if is_better else candidate
    return sp.simplify(z)


def with_limits(
    slope: sp.Expr,
    relation: sp.Expr,
    constants: Sequence[sp.Symbol],
    solves: Callable[[sp.Expr], bool],
) -> tuple[sp.Expr, sp.Expr]:
    """A general solution with 1 / C in place of C where that adds the solutions of infinite C, and loses none.

    Args:
        slope: y' of it.
        relation: what vanishes on it.
        constants: C1, ..., of which the last is added to the relation.
        solves: whether curves of a slope are solutions.
    """
    last = constants[-1]
    for c in constants[:-1]:
        turned = sp.simplify(sp.powdenest(slope.subs(c, 1 / c)))
        before, after = slope.subs(c, 0), turned.subs(c, 0)
        if after.has(*INFINITE) or not _is_real(after):
            continue
        lost = not before.has(*INFINITE) and before != 0 and _is_real(before) and solves(before)
        if lost or not solves(after):
            continue
        # a multiple of the relation, with another last constant, is finite at C = 0, too
        for scale in (sp.S.One, c):
            new = sp.expand(scale * (relation + last).subs(c, 1 / c)) - last
            at_zero = new.subs(c, 0)
            if not at_zero.has(*INFINITE) and (at_zero + last).free_symbols - set(constants):
                slope, relation = turned, new
                break
    return slope, relation


def real_logarithms(relation: sp.Expr, variables: Sequence[sp.Symbol]) -> sp.Expr:
    """With log(e^2) / 2 in place of log(e), which is real for e of either sign.

    Args:
        relation: what vanishes on a solution.
        variables: x and y, on which e depends.
    """
    if relation.has(sp.I):
        return relation

    def real(e: sp.Expr) -> sp.Expr:
        has_sign = e.has(*variables) and not isinstance(e, sp.exp)
        return sp.log(e**2) / 2 if has_sign else sp.log(e)

    return relation.replace(sp.log, real)


def one_logarithm(relation: sp.Expr, unknown: sp.Symbol) -> sp.Expr:
    """With log(e) in place of log(e^2) / 2 where e holds the unknown, which is then solved for over complex constants.

    Args:
        relation: what vanishes on a solution.
        unknown: y.
    """

    def plain(e: sp.Expr) -> sp.Expr:
        base, power = e.as_base_exp()
        return power * sp.log(base) if power == 2 and base.has(unknown) else sp.log(e)

    return relation.replace(sp.log, plain)


def _is_real(e: sp.Expr) -> bool:
    """Whether an expression is real somewhere."""
    symbols = sorted(e.free_symbols, key=str)
    for sign in (1, -1):
        value = e.subs({s: sign * (1 + k) * _POINT for k, s in enumerate(symbols)}).evalf()
        if value.is_number and value.is_finite and abs(sp.im(value)) == 0:
            return True
    return False
