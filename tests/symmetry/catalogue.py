"""Equations whose point symmetries are in the literature.

Sources: [O] Olver, Applications of Lie Groups to Differential Equations, 2nd ed. 1993; [I] Ibragimov (ed.), CRC
Handbook of Lie Group Analysis of Differential Equations, vol. 1, 1994; [BK] Bluman and Kumei, Symmetries and
Differential Equations, 1989; [Ov] Ovsiannikov, Group Analysis of Differential Equations, 1982; [St] Stephani,
Differential Equations: Their Solution Using Symmetries, 1989; [L] Lie, Vorlesungen, 1891; others by name.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Textbook"]


@dataclass(frozen=True)
class Textbook:
    """An equation and its symmetries beside superposition.

    Attributes:
        name: a name.
        equations: as text, separated by semicolons.
        size: the dimension; ``None`` if it is infinite.
        functions: if infinite, how many functions of how many variables.
        source: where it is found.
        slow: whether it takes more than a few seconds.
        found: how many of them the search finds, if not all.
    """

    name: str
    equations: str
    size: int | None
    source: str
    functions: tuple[int, int] = (0, 0)
    slow: bool = False
    found: int | None = None

    def __str__(self) -> str:
        return self.name


CMP = "Clarkson, Mansfield, Priestley 1997"
DKLW = "David, Kamran, Levi, Winternitz 1985"

ORDINARY = [
    Textbook("free particle", "y'' = 0", 8, "[L]"),
    Textbook("oscillator", "y'' + y = 0", 8, "[L]"),
    Textbook("oscillator, any frequency", "y'' + w^2*y = 0", 8, "[L]"),
    Textbook("repeller", "y'' = 4*y", 8, "[L]"),
    Textbook("damped oscillator", "y'' + 2*y' + 5*y = 0", 8, "[L]"),
    Textbook("forced oscillator", "y'' + y = x^2", 8, "[L]"),
    Textbook("Bessel", "y'' + y'/x + y = 0", 8, "[L]; in Bessel functions", found=1),
    Textbook("Euler", "x^2*y'' + x*y' + y/4 = 0", 8, "[L]", found=8),
    Textbook("third order", "y''' = 0", 7, "[I] ch. 3"),
    Textbook("fourth order", "y'''' = 0", 8, "[I] ch. 3: order + 4"),
    Textbook("third order, iterative", "y''' + y' = 0", 7, "Mahomed and Leach 1990"),
    Textbook("third order, constant", "y''' + y = 0", 5, "Mahomed and Leach 1990: order + 2"),
    Textbook("fourth order, constant", "y'''' = y", 6, "Mahomed and Leach 1990: order + 2"),
    Textbook("Ermakov", "y'' = y^(-3)", 3, "[I] ch. 3"),
    Textbook("Ermakov-Pinney", "y'' + y = y^(-3)", 3, "Leach 1991"),
    Textbook("modified Emden", "y'' + 3*y*y' + y^3 = 0", 8, "Mahomed and Leach 1985"),
    Textbook("logarithm of a line", "y'' = y'^2/y", 8, "[St]"),
    Textbook("cubic in the slope", "y'' = y'^3", 8, "[L]: x and y change places"),
    Textbook("fifth power of the slope", "y'' = y'^5", 3, "[L]"),
    Textbook("any power of the slope", "y'' = y'^n", 3, "[L]"),
    Textbook("exponential of the slope", "y'' = exp(y')", 3, "[L]"),
    Textbook("circles of radius one", "y'' = (1 + y'^2)^(3/2)", 3, "[O] ch. 2: Euclidean group"),
    Textbook("power of y", "y'' + y^3 = 0", 2, "[St]"),
    Textbook("any power of y", "y'' = y^n", 2, "[St]"),
    Textbook("exponential of y", "y'' = exp(y)", 2, "[St]"),
    Textbook("Emden-Fowler", "y'' = x*y^3", 1, "Polyanin and Zaitsev 2003"),
    Textbook("Painleve I", "y'' = 6*y^2 + x", 0, "Ince 1927"),
    Textbook("Painleve II", "y'' = 2*y^3 + x*y", 0, "Ince 1927"),
    Textbook("van der Pol", "y'' + (y^2 - 1)*y' + y = 0", 1, "[I]"),
    Textbook("Duffing", "y'' + y + y^3 = 0", 1, "[I]"),
    Textbook("pendulum", "y'' + sin(y) = 0", 1, "[St]"),
    Textbook("Blasius", "y''' + y*y''/2 = 0", 2, "[BK]"),
    Textbook("Chazy", "y''' = 2*y*y'' - 3*y'^2", 3, "Clarkson and Olver 1996"),
    Textbook("Schwarzian derivative", "y''' = 3*y''^2/(2*y')", 6, "[O] ch. 2"),
    Textbook("Kepler, plane", "x'' = -x/(x^2 + y^2)^(3/2); y'' = -y/(x^2 + y^2)^(3/2) + 0*t", 3, "[St]"),
    Textbook("free particle, plane", "x'' = 0*t; y'' = 0", 15, "[St]"),
]

PARTIAL = [
    Textbook("heat", "u_t = nu*u_xx", 6, "[O] 2.41"),
    Textbook("heat with drift and source", "u_t = u_xx + u_x + 1", 6, "[Ov]"),
    Textbook("heat, plane", "u_t = u_xx + u_yy", 9, "Goff 1927"),
    Textbook("heat, space", "u_t = u_xx + u_yy + u_zz", 13, "Goff 1927", slow=True),
    Textbook("heat in a parabola", "u_t = u_xx - x^2*u", 6, "[BK]"),
    Textbook("heat, inverse square", "u_t = u_xx + u/x^2", 4, "[BK]"),
    Textbook("heat, other potential", "u_t = u_xx + exp(-x^2)*u", 2, "[BK]"),
    Textbook("Ornstein-Uhlenbeck", "u_t = diff(x*u, x) + u_xx", 6, "[BK]", slow=True),
    Textbook("Black-Scholes", "V_t + s^2*S^2/2*V_SS + r*S*V_S = r*V", 6, "Gazizov and Ibragimov 1998", slow=True),
    Textbook("Kolmogorov", "u_t + x*u_y = u_xx", 8, "Kovalenko, Stogniy, Tertyshnyk 2014"),
    Textbook("Airy", "u_t = u_xxx", 4, "[O]"),
    Textbook("beam", "u_tt + u_xxxx = 0", 4, "[BK]"),
    Textbook("Burgers", "u_t + u*u_x = 0.1*u_xx", 5, "[O] 2.42"),
    Textbook("Burgers, forced", "u_t + u*u_x = u_xx + t^3", 5, "equivalent to Burgers", slow=True),
    Textbook("potential Burgers", "u_t = u_xx + u_x^2", None, "[O] 2.42", (2, 1)),
    Textbook("KdV", "u_t + u*u_x + u_xxx = 0", 4, "[O] 2.44"),
    Textbook("KdV, forced", "u_t + u*u_x + u_xxx = 1", 4, "equivalent to KdV"),
    Textbook("KdV, cylindrical", "u_t + u*u_x + u_xxx + u/(2*t) = 0", 4, "[I]: equivalent to KdV"),
    Textbook("KdV, modified", "u_t + u^2*u_x + u_xxx = 0", 3, "[I]"),
    Textbook("KdV, generalized", "u_t + u^n*u_x + u_xxx = 0", 3, "[I]"),
    Textbook("KdV, potential", "u_t + u_x^2 + u_xxx = 0", 5, "[I]"),
    Textbook("KdV, Schwarzian", "u_t = u_xxx - 3*u_xx^2/(2*u_x)", 6, "Weiss 1983"),
    Textbook("Gardner", "u_t + u*u_x + u^2*u_x + u_xxx = 0", 3, "equivalent to modified KdV"),
    Textbook("Harry Dym", "u_t = u^3*u_xxx", 5, "[I]"),
    Textbook("Kuramoto-Sivashinsky", "u_t + u*u_x + u_xx + u_xxxx = 0", 3, "[I]"),
    Textbook("Fisher", "u_t = u_xx + u*(1 - u)", 2, "[I]"),
    Textbook("quadratic source", "u_t = u_xx + u^2", 3, "Dorodnitsyn 1982"),
    Textbook("cubic source", "u_t = u_xx + u^3", 3, "Dorodnitsyn 1982"),
    Textbook("exponential source", "u_t = u_xx + exp(u)", 3, "Dorodnitsyn 1982"),
    Textbook("logarithmic source", "u_t = u_xx + u*log(u)", 4, "Dorodnitsyn 1982", slow=True),
    Textbook("diffusion, power", "u_t = diff(u^n*u_x, x)", 4, "[Ov]"),
    Textbook("diffusion, decimal power", "u_t = diff(u^0.3*u_x, x)", 4, "[Ov]"),
    Textbook("diffusion, -4/3", "u_t = diff(u^(-4/3)*u_x, x)", 5, "[Ov]"),
    Textbook("diffusion, -1", "u_t = diff(u_x/u, x)", 4, "[Ov]"),
    Textbook("diffusion, -2", "u_t = diff(u_x/u^2, x)", 4, "[Ov]"),
    Textbook("diffusion, shifted power", "u_t = diff((1 + u)^k*u_x, x)", 4, "[Ov]"),
    Textbook("diffusion, exponential", "u_t = diff(exp(u)*u_x, x)", 4, "[Ov]"),
    Textbook("diffusion, other", "u_t = diff((1 + u^2)*u_x, x)", 3, "[Ov]"),
    Textbook("diffusion, potential -2", "u_t = u_xx/u_x^2", None, "[BK]: hodograph of heat", (2, 1)),
    Textbook("p-Laplace", "u_t = diff(u_x^3, x)", 5, "[I]"),
    Textbook("thin film", "u_t + diff(u^3*u_xxx, x) = 0", 4, "[I]"),
    Textbook("curve shortening", "u_t = u_xx/(1 + u_x^2)", 5, "[O]: Euclidean group, time, scaling"),
    Textbook("wave", "u_tt = u_xx", None, "[O]: conformal", (2, 1)),
    Textbook("wave, plane", "u_tt = u_xx + u_yy", 11, "[O] 2.43"),
    Textbook("wave, space", "u_tt = u_xx + u_yy + u_zz", 16, "[I]", slow=True),
    Textbook("Laplace", "u_xx + u_yy = 0", None, "[O]: conformal", (2, 1)),
    Textbook("Laplace, space", "u_xx + u_yy + u_zz = 0", 11, "[O]"),
    Textbook("telegraph", "u_tt + u_t = u_xx", 4, "[BK]"),
    Textbook("Klein-Gordon", "u_tt = u_xx - u", 4, "[I]"),
    Textbook("Klein-Gordon, cubic", "u_tt = u_xx + u^3", 4, "[I]"),
    Textbook("sine-Gordon", "u_xt = sin(u)", 3, "[I]"),
    Textbook("sinh-Gordon", "u_xt = sinh(u)", 3, "[I]"),
    Textbook("Tzitzeica", "u_xt = exp(u) + exp(-2*u)", 3, "[I]"),
    Textbook("Liouville", "u_xt = exp(u)", None, "[L]", (2, 1)),
    Textbook("nonlinear wave", "u_tt = diff(u^n*u_x, x)", 4, "Ames, Lohner, Adams 1981"),
    Textbook("nonlinear wave, -4/3", "u_tt = diff(u^(-4/3)*u_x, x)", 5, "Ames, Lohner, Adams 1981"),
    Textbook("nonlinear wave, -4", "u_tt = diff(u^(-4)*u_x, x)", 5, "Ames, Lohner, Adams 1981"),
    Textbook("Boussinesq", "u_tt + u*u_xx + u_x^2 + u_xxxx = 0", 3, "Nishitani and Tajiri 1982"),
    Textbook("BBM", "u_t + u_x + u*u_x = u_xxt", 3, "[I]"),
    Textbook("Camassa-Holm", "u_t - u_xxt + 3*u*u_x = 2*u_x*u_xx + u*u_xxx", 3, CMP),
    Textbook("Degasperis-Procesi", "u_t - u_xxt + 4*u*u_x = 3*u_x*u_xx + u*u_xxx", 3, CMP),
    Textbook("Hunter-Saxton", "u_xt + u*u_xx + u_x^2/2 = 0", None, "[I]", (1, 1)),
    Textbook("Hamilton-Jacobi", "u_t + u_x^2/2 = 0", 10, "[I]: conformal"),
    Textbook("eikonal", "u_t^2 + u_x^2 = 1", 10, "[I]: conformal"),
    Textbook("minimal surface", "(1 + u_y^2)*u_xx - 2*u_x*u_y*u_xy + (1 + u_x^2)*u_yy = 0", 7, "Bila 1999"),
    Textbook("Born-Infeld", "(1 - u_t^2)*u_xx + 2*u_x*u_t*u_xt - (1 + u_x^2)*u_tt = 0", 7, "[I]"),
    Textbook("Monge-Ampere", "u_xx*u_yy - u_xy^2 = 1", 9, "[I]: equiaffine"),
    Textbook("developable surfaces", "u_xx*u_yy = u_xy^2", 15, "[I]: projective"),
    Textbook("fast diffusion, plane", "u_t = diff(u_x/u, x) + diff(u_y/u, y)", None, "[Ov]: conformal", (2, 1), True),
    Textbook("NLS", "u_t = -v_xx - (u^2 + v^2)*v; v_t = u_xx + (u^2 + v^2)*u", 5, "Gagnon and Winternitz 1988"),
    Textbook(
        "NLS, quintic", "u_t = -v_xx - (u^2 + v^2)^2*v; v_t = u_xx + (u^2 + v^2)^2*u", 6, "Gagnon and Winternitz 1988"
    ),
    Textbook("Schroedinger", "u_t = -v_xx; v_t = u_xx", 7, "Niederer 1972, and the norm"),
    Textbook("KP", "u_xt + u_x^2 + u*u_xx + u_xxxx + u_yy = 0", None, DKLW, (3, 1), True),
    Textbook(
        "Navier-Stokes, plane",
        "u_t + u*u_x + v*u_y = -p_x + nu*(u_xx + u_yy); v_t + u*v_x + v*v_y = -p_y + nu*(v_xx + v_yy); u_x + v_y = 0",
        None,
        "[O], Lloyd 1981",
        (3, 1),
        True,
    ),
]

CATALOGUE = [*ORDINARY, *PARTIAL]
