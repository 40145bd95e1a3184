"""Left-trivialized gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import grad_and_aux
from trivgeo.checks import check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup


@checked
def trivialized_grad(
    group: LieGroup, f: Callable[[Tensor], Tensor], g: Tensor, name: str = "f"
) -> Float[Tensor, "*batch n"]:
    r"""The left-trivialized gradient :math:`\nabla_{\mathfrak g} f(g) = \nabla_v f(g \exp v)|_{v = 0}`.

    Its n-th component is the derivative of f along the left-invariant field of the n-th basis element; f is any
    function that maps elements ``[*batch, *element_shape]`` to numbers ``[*batch]``, each row independently.
    Composes with ``torch.func`` (``vmap``, ``jacrev``, ``jacfwd``) and ``torch.compile``.

    Args:
        group: the group of the elements.
        f: function ``[*batch, *element_shape] -> [*batch]``.
        g: elements ``[*batch, *element_shape]``.
        name: what messages call f.

    Raises:
        ShapeError: f does not return one number per element.
        ConfigurationError: the arguments are in another order.
    """
    return trivialized_grad_and_value(group, f, g, name)[0]


@checked
def trivialized_grad_and_value(
    group: LieGroup, f: Callable[[Tensor], Tensor], g: Tensor, name: str = "f"
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch"]]:
    """Return `trivialized_grad` and the values ``f(g)``, from one evaluation.

    Args:
        group: the group of the elements.
        f: a function of elements ``[*batch, *element_shape]`` to numbers ``[*batch]``, each row independently.
        g: elements.
        name: what messages call f.

    Raises:
        ConfigurationError: the first argument is no group.
        ShapeError: f does not return one number for each element.
    """
    if not isinstance(group, LieGroup):
        raise ConfigurationError(
            f"group: expected a LieGroup, then a function, then elements; got {type(group).__name__}"
        )
    group.check_elements(g)
    batch = group.batch_shape(g)

    def total(v: Tensor) -> tuple[Tensor, Tensor]:
        values = check_tensor(name, f(group.perturb(g, v)))
        if values.shape != batch:
            raise ShapeError(f"{name}: expected one number per element {list(batch)}, got {list(values.shape)}")
        return values.sum(), values

    zero = torch.zeros(*batch, group.dim, dtype=g.dtype, device=g.device)
    return grad_and_aux(total, zero)
