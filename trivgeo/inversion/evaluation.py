"""Networks of inverters: where they are found, and their evaluation mode for the time of a call."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.energies.base import DataEnergy, FunctionEnergy
from trivgeo.inversion.stage import Stage

_DTYPE_MESSAGE = re.compile("dtype|scalar type|Input type")  # words of torch's messages where dtypes differ
_COUNT_ATTRIBUTE = "_trivgeo_calls_in_evaluation_mode"  # holds a module's `_Count` during calls, and only then
_MODES_LOCK = threading.Lock()  # held while modes and counts change, never during a call


class _Count:
    """Number of calls that hold one module in evaluation mode; a copy of the module begins at zero."""

    def __init__(self) -> None:
        self.calls = 0

    def __reduce__(self) -> tuple[type[_Count], tuple[()]]:
        return _Count, ()


def networks_in(*parts: object) -> list[nn.Module]:
    """Return the networks of stages and energies, each once.

    Args:
        parts: networks themselves, stages and energies with networks as attributes, and lists and tuples of all these;
            other objects have none.
    """
    found: list[nn.Module] = []
    for part in parts:
        if isinstance(part, nn.Module):
            found.append(part)
        elif isinstance(part, list | tuple):
            found += networks_in(*part)
        elif isinstance(part, Stage | DataEnergy):
            found += networks_in(*vars(part).values())
    return list(dict.fromkeys(found))


@contextmanager
def evaluation_mode(user: object) -> Iterator[None]:
    """Put every module in training mode into evaluation mode, and back when the last call that needs it has ended.

    The attribute `torch.nn.Module.training` alone decides, so that dropout by ``F.dropout(x, p, self.training)`` counts
    as well as that of a layer. Threads may share a module: it holds a count of the calls that use it, and goes back to
    training mode with the last of them, also after an error.

    Args:
        user: an inverter or an energy. Its networks are those of `networks_in`, with all their parts, and those whose
            method an energy is.
    """
    held = _hold(_modules_of(user))
    try:
        yield
    finally:
        _release(held)


@contextmanager
def explained_dtypes(name: str, user: object, x: Any) -> Iterator[None]:
    """Raise `ConfigurationError` in place of an error of torch that the dtype of the data ``x`` causes.

    The message calls the data ``name``; ``user`` is the inverter, or what else is called with them.
    """
    try:
        yield
    except RuntimeError as error:
        numbers = [p for module in _modules_of(user) for p in module.parameters(recurse=False)]
        own = {p.dtype for p in numbers if p.is_floating_point()}
        given = {leaf.dtype for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)}
        if own & given or not (own or _DTYPE_MESSAGE.search(str(error))):
            raise
        wanted = f"in {', '.join(map(str, own))} as the network" if own else "in a dtype that the network takes"
        raise ConfigurationError(
            f"{name}: expected data {wanted}, got {', '.join(map(str, given))}: {error}"
        ) from error


def _modules_of(user: object) -> list[nn.Module]:
    """Return the module, its parts, and the owners of methods among its energies, each once."""
    found = [part for network in networks_in(user) for part in network.modules()]
    for part in tuple(found):
        owner = getattr(part.function, "__self__", None) if isinstance(part, FunctionEnergy) else None
        found += owner.modules() if isinstance(owner, nn.Module) else ()
    return list(dict.fromkeys(found))


def _hold(modules: list[nn.Module]) -> list[nn.Module]:
    """Put modules into evaluation mode; return those that are to go back to training mode."""
    with _MODES_LOCK:
        # a module that another call holds is held by this one, too: the other call may end first
        held = [module for module in modules if module.training or _COUNT_ATTRIBUTE in vars(module)]
        for module in held:
            count: _Count = vars(module).setdefault(_COUNT_ATTRIBUTE, _Count())
            count.calls += 1
            module.training = False  # not `train(False)`, which would change the parts as well
    return held


def _release(modules: list[nn.Module]) -> None:
    """Put modules back into training mode that no other call holds."""
    with _MODES_LOCK:
        for module in modules:
            count: _Count = vars(module)[_COUNT_ATTRIBUTE]
            count.calls -= 1
            if count.calls == 0:
                del vars(module)[_COUNT_ATTRIBUTE]
                module.training = True
