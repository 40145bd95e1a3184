"""What inductor may leave out, or do meanwhile, where a graph is one that `WriteOut` has written out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import LambdaFuture
from torch._inductor.fx_passes import post_grad

__all__ = ["shortcuts"]


class _Known:
    """In place of the search for nodes whose description is out of date: `WriteOut` describes each that it makes."""

    def __init__(self, module: Any) -> None: ...

    def incremental_update(self) -> int:
        return 0


def _described(module: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
    """In place of describing all nodes of a traced graph once more: the mode in which that was done."""
    return detect_fake_mode(inputs) or _describe(module, inputs, *rest, **named)


_describe = compile_fx.fake_tensor_prop


class _Meanwhile:
    """A function that the C++ compiler works on, in a thread: the forward one, while the backward one is traced."""

    def __init__(self, scope: dict[str, Any], name: str, future: LambdaFuture) -> None:
        self._scope, self._name, self._future = scope, name, future

    def result(self) -> Any:
        self._scope[self._name] = function = self._future.result()  # the next call finds it there
        return function

    def __call__(self, *arguments: Any) -> Any:
        return self.result()(*arguments)


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """Compile in less time; all is compiled, or an error raised, at the end."""
    begun: list[_Meanwhile] = []
    wait = AsyncCompile._wait_futures

    def wait_for_others(self: AsyncCompile, scope: dict[str, Any]) -> None:
        for name, value in [*scope.items()]:
            if isinstance(value, LambdaFuture) and value.future is None:  # not of a process, as code of accelerators
                scope[name] = later = _Meanwhile(scope, name, value)
                begun.append(later)
        wait(self, scope)

    with (
        mock.patch.object(compile_fx, "fake_tensor_prop", _described),
        mock.patch.object(post_grad, "FakeTensorUpdater", _Known),
        mock.patch.object(AsyncCompile, "_wait_futures", wait_for_others),
        torch._dynamo.config.patch(run_gc_after_compile=False),
    ):
        yield
        for function in begun:
            function.result()
