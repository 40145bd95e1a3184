"""Loops over the batch, machine code: each rule against the operator, and graphs of several loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, seeded
from trivgeo.groups import SO, _programs, _source, compilation
from trivgeo.groups._source import _OF_ONE, _RULES, aten

nan, inf = float("nan"), float("inf")


def machine_code(
    f: Callable[..., Tensor], arguments: Sequence[Tensor], derivatives: Sequence[bool] = ()
) -> Callable[..., Tensor]:
    return compilation._machine_code(f, arguments, compilation._recorded(f, arguments, derivatives))


def run(f: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    return machine_code(f, arguments)(*arguments)


def functions(x: Tensor, y: Tensor) -> list[Tensor]:
    """What has a rule, of numbers of both signs."""
    inside, positive, above = x.tanh() * 0.9, x.abs() + 0.1, x.abs() + 1.1
    domain = {**dict.fromkeys(("acos", "asin", "atanh"), inside), "acosh": above}
    domain |= dict.fromkeys(("log", "log10", "log1p", "log2", "sqrt"), positive)
    values = [getattr(torch, name)(domain.get(name, x)) for name in _OF_ONE]
    values += [
        x + y,
        x - y,
        x * y,
        x / above,
        -x,
        1 / above,
        positive.rsqrt(),
        torch.addcmul(x, y, x),
        x * 1,
        x + 2,
        3 - x,
    ]
    values += [torch.maximum(x, y), torch.minimum(x, y), x.clamp(min=0.2), x.clamp(max=0.1), torch.clamp(x, -0.3, 0.3)]
    values += [positive**p for p in (1, 2, 3, 4, 5, 0.5, -0.5, -1, -2, 1.7)] + [positive**y]
    values += [torch.atan2(x, y), torch.hypot(x, y), x.sign(), torch.where(x < y, x, y)]
    less, positive_too = x < y, y > 0
    masks = [x < y, x <= y, x > y, x >= y, x == y, x != y, x < 0.5, x == 0.5, less & positive_too, less | positive_too]
    masks += [less ^ positive_too, ~less, less.logical_and(positive_too), less.logical_or(positive_too)]
    return values + [m.to(x.dtype) for m in masks]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_rule_is_the_operator(dtype: torch.dtype) -> None:
    """On batches that fill vectors and that do not."""

    def f(a: Tensor) -> Tensor:
        return torch.stack(functions(*a.unbind(-1)), -1)

    a = torch.randn(67, 2, generator=seeded(0), dtype=dtype)
    a[3], a[4, 0], a[5] = torch.tensor([0.0, 0.0]), 0.5, a[5, 1]
    fast = machine_code(f, [a])
    for batch in (67, 64, 5):
        value = fast(a[:batch].contiguous())
        wanted = f(a[:batch])
        for i in range(wanted.shape[-1]):
            assert_relative(value[:, i], wanted[:, i], 1e-14 if dtype == torch.float64 else 2e-6)


def test_no_number() -> None:
    """A NaN stays in what depends on it, and infinities are those of the operators."""

    def f(a: Tensor) -> Tensor:
        x, y = a.unbind(-1)
        values = [
            torch.maximum(x, y),
            torch.minimum(x, y),
            x.clamp(min=0),
            x.clamp(max=0),
            x + y,
            x * y,
            x / y,
            x.sign(),
        ]
        return torch.stack([*values, (x < y).double(), (x != y).double(), torch.where(x > y, x, y), x.round()], -1)

    special = torch.tensor([nan, inf, -inf, 0.0, -1.5, 2.5], dtype=torch.float64)
    a = torch.cartesian_prod(special, special)
    assert torch.equal(run(f, a).nan_to_num(7.0, 8.0, 9.0), f(a).nan_to_num(7.0, 8.0, 9.0))


def test_two_precisions_and_masks_in_memory() -> None:
    """Singles among doubles, a mask as argument and as result."""
    a = torch.randn(37, 3, generator=seeded(0), dtype=torch.float64)
    b, mask = a.roll(1, 0).float(), a > 0.3

    def numbers(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        x = torch.where(mask, b.sin(), b)  # singles
        return torch.stack([(a * x).sum(-1), (a < x).sum(-1) * a[:, 0], x.exp().double()[:, 1]], -1)

    assert_relative(run(numbers, a, b, mask), numbers(a, b, mask), 5e-7)
    assert run(lambda a: a * 2 > a.exp(), a).equal(a * 2 > a.exp())
    assert run(lambda b: (b * 2).float().cos(), b).dtype == torch.float32


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: (a.sin() @ b).flip(0).exp() * a,
        lambda a, b: (a.exp() @ b) / (a.exp() @ b).sum(0),
        lambda a, b: (a.sin() @ b).cumsum(0).exp() @ (a * b).flip(0).cos() + a.sin(),
        lambda a, b: torch.special.i0(a[:, 0, 0]) * a[:, 1, 1].exp() + b[:, 0, 0],
        lambda a, b: torch.special.i0(a[:, 0, 0] * b[:, 0, 0]),
        lambda a, b: (a.sin() @ b).mT[:, 0],
        lambda a, b: a.new_ones(a.shape[0], 2),
        lambda a, b: a[1:, 0, 0].exp() * b[:-1, 0, 0].cos(),
        lambda a, b: (
            a.mean((1, 2)).exp().sum(0).cos() * b.sin() + (torch.arange(100.0, dtype=a.dtype) / 100).exp().sum()
        ),
        lambda a, b: (a.flatten().exp() * b.flatten()).unflatten(0, (-1, 3, 3)).sum(-1),
        lambda a, b: torch.linalg.matrix_exp(a.sin() @ b).cos() @ a,
        lambda a, b: torch.linalg.matrix_exp(torch.cat([a.sin(), b], -1)[..., :3] @ a).sum((-2, -1)) * a[:, 0, 0],
        lambda a, b: torch.linalg.svd(a @ b)[0].square() + torch.linalg.inv_ex(a)[0],
        lambda a, b: (
            (torch.complex(a, b) * (2 - 1j)).mH.imag.exp() + torch.linalg.eigvals(a).real.sum(-1)[:, None, None]
        ),
        lambda a, b: (a.flatten(1) @ torch.linspace(0, 1, 900, dtype=a.dtype).reshape(9, 100)).sin(),
    ],
    ids=[
        *("elements", "all", "several", "number", "only", "turned", "constant", "shorter", "longer", "flat"),
        *("routine", "between", "columns", "complex", "table"),
    ],
)
def test_what_is_between_loops(f: Callable[..., Tensor]) -> None:
    """What other elements have, or functions without a rule: before, between and after loops."""
    a, b = torch.randn(2, 40, 3, 3, generator=seeded(0), dtype=torch.float64)
    assert_relative(run(f, a, b), f(a, b), 1e-12)


def test_threads() -> None:
    """Of a batch that is worth several, with a rest."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        a = torch.randn(100_003, 3, 3, generator=seeded(0), dtype=torch.float64)

        def f(a: Tensor) -> Tensor:
            return (a.sin() @ a.cos()) @ a.mT

        assert_relative(run(f, a), f(a), 1e-13)
    finally:
        torch.set_num_threads(before)


def test_a_processor_without_vectors() -> None:
    a = torch.randn(13, 2, generator=seeded(0), dtype=torch.float64)

    def f(a: Tensor) -> Tensor:
        return torch.stack([a[:, 0].exp() * a[:, 1], a[:, 1].clamp(min=0)], -1)

    with torch._inductor.config.patch({"cpp.simdlen": 1}):
        assert_relative(run(f, a), f(a), 1e-14)


def test_every_rule_is_tested() -> None:
    others = """add sub mul div neg reciprocal rsqrt addcmul maximum minimum clamp_min clamp_max pow atan2 hypot sign
    where convert_element_type lt le gt ge eq ne bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or
    logical_xor logical_not"""
    tested = {*_OF_ONE, *others.split()}
    assert {rule.name().split("::")[1].split(".")[0] for rule in _RULES} == tested
    assert aten.lgamma.default not in _RULES


# Regimes ----------------------------------------------------------------------------------------------------------


def regimes(seed: int) -> Callable[[Tensor], Tensor]:
    """A function with masks, opposite ones and those of two, numbers chosen among chosen ones, and such that are
    chosen by a mask and used besides.
    """
    draw = random.Random(seed)
    steps = [(draw.random(), *(draw.random() for _ in range(3))) for _ in range(70)]

    def f(x: Tensor) -> Tensor:
        numbers, masks = list(x.unbind(-1)), [x[:, 0] > 0.3, x[:, 1] > 2.5]

        def pick(u: float) -> Tensor:  # mostly late ones, so that most are used
            return numbers[int(len(numbers) * u**0.3)]

        for kind, u, v, w in steps:
            mask = masks[int(len(masks) * w)]
            if kind < 0.1:
                masks.append(pick(u) < pick(v))
            elif kind < 0.15:
                masks.append(~mask)
            elif kind < 0.2:
                masks.append(mask & masks[int(len(masks) * u)])
            elif kind < 0.5:
                numbers.append(torch.where(mask, pick(u), pick(v)))
            elif kind < 0.6:
                a = pick(u)
                numbers.append(torch.where(mask, (torch.where(mask, a, 0.0) * 2).sin(), pick(v)))
            elif kind < 0.8:
                numbers.append(pick(u).sin() + pick(v))
            else:
                numbers.append(0.7 * pick(u) - pick(v).cos() * 0.5)
        return torch.stack(numbers[-5:], -1)

    return f


def program_of(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[str, list[Tensor]]:
    """Its text, and the result with the derivative of its sine."""
    parts = _programs._traced(f, (x,), (True,))
    forward, backward = (part.load()() for part in parts if part is not None)
    (value,) = forward(x)
    text = "".join(step.source for part in parts if part for step in part.steps if isinstance(step, _programs.Loop))
    return text, [value, *backward(x, value.cos())]


MORE = [pytest.param(seed, 0, 20, marks=pytest.mark.slow) for seed in range(3, 30)]


@pytest.mark.parametrize(("seed", "few", "most"), [(0, 1000, 5000), (1, 0, 5000), (2, 0, 30), *MORE])
def test_what_no_element_needs_is_left_out(seed: int, few: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: results are those without branches, for vectors of one regime and of several."""
    for name, number in (("_FEW", few), ("_MOST", most)):
        monkeypatch.setattr(_source, name, number)
    f = regimes(seed)
    x = torch.randn(133, 4, generator=seeded(seed), dtype=torch.float64)
    x[:64] = x[:64].sort(0).values
    x[70, 0], x[90, 1] = nan, inf
    monkeypatch.setattr(_source, "_WORTH", 10**9)
    plain, wanted = program_of(f, x)
    monkeypatch.setattr(_source, "_WORTH", 0)
    branched, found = program_of(f, x)
    assert "if (any(" not in plain
    assert branched.count("if (any(") > 4
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(7.0, 8.0, 9.0), other.nan_to_num(7.0, 8.0, 9.0))
    leaf = x.clone().requires_grad_()
    value = f(leaf)
    (slope,) = torch.autograd.grad(value.sin().sum(), leaf)
    for one, other in zip(found, (value.detach(), slope), strict=True):  # rounding decides where two are compared
        near = torch.isclose(one, other, rtol=1e-12, atol=1e-12, equal_nan=True).all(-1)
        assert float(near.double().mean()) > 0.9


def test_a_regime_that_nothing_is_in() -> None:
    """Exponentials of short vectors are not doubled, beside long ones they are."""
    group = SO(5)
    (loop,) = _programs._traced(group._scaled_exp, (torch.randn(8, 10, dtype=torch.float64),), (False,))[0].steps
    assert isinstance(loop, _programs.Loop)
    assert loop.source.count("if (any(") == 10
    v = torch.randn(29, 10, generator=seeded(0), dtype=torch.float64)
    v[[3, 11, 12]] *= torch.tensor([100.0, 10.0, 300.0], dtype=torch.float64).unsqueeze(-1)
    v[20] = nan
    got, numbers = run(group._scaled_exp, v), [*range(20), *range(21, 29)]
    assert_relative(got[numbers], torch.linalg.matrix_exp(group.hat(v))[numbers], 1e-12)
    assert got[20].isnan().all()
