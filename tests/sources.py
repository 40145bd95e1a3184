"""The syntax of modules, parsed once for all tests that read it."""

import ast
import functools


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """The nodes of a module, in the order of `ast.walk`: the module itself is the first."""
    return tuple(ast.walk(ast.parse(source)))
