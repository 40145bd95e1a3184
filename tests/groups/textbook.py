"""Generators of symmetry groups as textbooks write them, as SymPy expressions."""

import sympy as sp

NU = 0.1
x, y, z, t, u, v = sp.symbols("x y z t u v")
b, c, d, e = sp.symbols("b c d e")
nu = sp.Symbol("nu")

HEAT = {
    "D": (x, 2 * t, 0),
    "E": (0, 1, 0),
    "F": (x * t, t**2, -(x**2 / (4 * nu) + t / 2) * u),
    "Q": (1, 0, 0),
    "P": (t, 0, -x * u / (2 * nu)),
    "Z": (0, 0, u),
}
BURGERS = {"D": (x, 2 * t, -u), "E": (0, 1, 0), "F": (x * t, t**2, x - t * u), "Q": (1, 0, 0), "P": (t, 0, 1)}
KDV = {"X": (1, 0, 0), "T": (0, 1, 0), "C": (t, 0, 1), "S": (x, 3 * t, -2 * u)}
PLANE = {"Tx": (1, 0), "Ty": (0, 1)}
LINEAR = {"xx": (x, 0), "xy": (y, 0), "yx": (0, x), "yy": (0, y)}
SPACE = {"Tx": (1, 0, 0), "Ty": (0, 1, 0), "Tz": (0, 0, 1)}
TURNS = {"Rx": (0, -z, y), "Ry": (z, 0, -x), "Rz": (-y, x, 0)}
GALILEI = {k: (*f, 0) for k, f in (SPACE | TURNS).items()}
GALILEI |= {f"K{k[1]}": (*(t * s for s in f), 0) for k, f in SPACE.items()} | {"E": (0, 0, 0, 1)}
SCHROEDINGER = {
    "Q": (1, 0, 0, 0),
    "E": (0, 1, 0, 0),
    "R": (0, 0, -v, u),
    "P": (t, 0, -x * v / 2, x * u / 2),
    "D": (x, 2 * t, -u / 2, -v / 2),
    "F": (x * t, t**2, -t * u / 2 - x**2 * v / 4, -t * v / 2 + x**2 * u / 4),
}
FILIFORM = {
    "X": (1, 0, 0, 0, 0, 0),
    "S": (x, 0, b, 2 * c, 3 * d, 4 * e),
    "Y1": (0, 1, x, x**2 / 2, x**3 / 6, x**4 / 24),
    "Y2": (0, 0, 1, x, x**2 / 2, x**3 / 6),
    "Y3": (0, 0, 0, 1, x, x**2 / 2),
    "Y4": (0, 0, 0, 0, 1, x),
    "Y5": (0, 0, 0, 0, 0, 1),
}

OSCILLATOR = {"T": (1,), "C": (sp.cos(x),), "S": (sp.sin(x),)}
ERMAKOV = {
    "T": (1, 0),
    "C": (sp.cos(2 * t), -u * sp.sin(2 * t)),
    "S": (sp.sin(2 * t), u * sp.cos(2 * t)),
}
SPECIAL_AFFINE = PLANE | {"H": (x, -y), "E": (y, 0), "F": (0, x)}
