"""Results of a search as a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")


class FoundSequence(Sequence[Item]):
    """A sequence of the items that a search found; subclasses add statements about all of them."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items[index]
