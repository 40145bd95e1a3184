"""Equations whose point symmetries are in the literature.

Sources: [O] Olver, Applications of Lie Groups to Differential Equations, 2nd ed. 1993; [I] Ibragimov (ed.), CRC
Handbook of Lie Group Analysis of Differential Equations, vol. 1, 1994; [BK] Bluman and Kumei, Symmetries and
Differential Equations, 1989; [Ov] Ovsiannikov, Group Analysis of Differential Equations, 1982; [St] Stephani,
Differential Equations: Their Solution Using Symmetries, 1989; [L] Lie, Vorlesungen, 1891; others by name. Where no
source is certain it says so, and the dimension is that of the ranks modulo a prime.
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
        found: how many of them the search finds, if not all.
    """

    name: str
    equations: str
    size: int | None
    source: str
    functions: tuple[int, int] = (0, 0)
    found: int | None = None

    def __str__(self) -> str:
        return self.name


CMP = "Clarkson, Mansfield, Priestley 1997"
DKLW = "David, Kamran, Levi, Winternitz 1985"

RANKS = "ranks modulo a prime"
GEODESICS = "a'' = sin(a)*cos(a)*b'^2; b'' = -2*cos(a)/sin(a)*a'*b'"
SHALLOW = "h_t + u*h_x + v*h_y + h*(u_x + v_y) = 0; u_t + u*u_x + v*u_y + h_x = 0; v_t + u*v_x + v*v_y + h_y = 0"
GAS_LINE = "r_t + u*r_x + r*u_x = 0; u_t + u*u_x + p_x/r = 0; p_t + u*p_x + {}*p*u_x = 0"
GAS_PLANE = (
    "r_t + u*r_x + v*r_y + r*(u_x + v_y) = 0; u_t + u*u_x + v*u_y + p_x/r = 0; "
    "v_t + u*v_x + v*v_y + p_y/r = 0; p_t + u*p_x + v*p_y + {}*p*(u_x + v_y) = 0"
)
EULER = "u_t + u*u_x + v*u_y = -p_x; v_t + u*v_x + v*v_y = -p_y; u_x + v_y = 0"
MAXWELL = (  # electric e, f, g; magnetic u, v, w
    "e_t = w_y - v_z; f_t = u_z - w_x; g_t = v_x - u_y; u_t = f_z - g_y; v_t = g_x - e_z; w_t = e_y - f_x; "
    "e_x + f_y + g_z = 0; u_x + v_y + w_z = 0"
)
NLS_PLANE = "u_t = -v_xx - v_yy - (u^2 + v^2)*v; v_t = u_xx + u_yy + (u^2 + v^2)*u"
MKDV_TWO = "u_t + 6*(u^2 + v^2)*u_x + u_xxx = 0; v_t + 6*(u^2 + v^2)*v_x + v_xxx = 0"

ORDINARY = [
    Textbook("free particle", "y'' = 0", 8, "[L]"),
    Textbook("oscillator", "y'' + y = 0", 8, "[L]"),
    Textbook("oscillator, any frequency", "y'' + w^2*y = 0", 8, "[L]"),
    Textbook("repeller", "y'' = 4*y", 8, "[L]"),
    Textbook("damped oscillator", "y'' + 2*y' + 5*y = 0", 8, "[L]"),
    Textbook("forced oscillator", "y'' + y = x^2", 8, "[L]"),
    Textbook("Bessel", "y'' + y'/x + y = 0", 8, "[L]; in Bessel functions"),
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
    Textbook("Kepler, plane", "x'' = -x/(x^2 + y^2)^(3/2); y'' = -y/(x^2 + y^2)^(3/2)", 3, "[St]"),
    Textbook("free particle, plane", "x'' = 0; y'' = 0", 15, "[St]"),
    Textbook("quadratic in the slope", "y'' = y'^2", 8, "[L]: linear in exp(-y)"),
    Textbook("exponential integrals", "y'' = y'^2*(1/y + 1)", 8, "[L]: linear in Ei(-y)"),
    Textbook("product", "y*y'' + y'^2 = 0", 8, "[L]: linear in y^2"),
    Textbook("forced, quadratic", "y'' = x^2", 8, "[L]"),
    Textbook("Legendre", "(1 - x^2)*y'' - 2*x*y' + 2*y = 0", 8, "[L]; in logarithms"),
    Textbook("Lane-Emden", "y'' + 2*y'/x + y^n = 0", 1, "[BK]"),
    Textbook("Lane-Emden, 5", "y'' + 2*y'/x + y^5 = 0", 1, "[O] ch. 4: the variational one"),
    Textbook("Painleve III", "y'' = y'^2/y - y'/x + (a*y^2 + b)/x + c*y^3 + d/y", 0, "Ince 1927"),
    Textbook("fifth order", "y''''' = 0", 9, "[I] ch. 3: order + 4"),
    Textbook("oscillator, plane", "x'' = -x; y'' = -y", 15, "[St]"),
    Textbook("two frequencies", "x'' = -x; y'' = -2*y", 7, "Gorringe and Leach 1988"),
    Textbook(
        "Kepler",
        "x'' = -x/(x^2 + y^2 + z^2)^(3/2); y'' = -y/(x^2 + y^2 + z^2)^(3/2); z'' = -z/(x^2 + y^2 + z^2)^(3/2)",
        5,
        "[St]",
    ),
    Textbook("Henon-Heiles", "x'' = -x - 2*x*y; y'' = -y - x^2 + y^2", 1, "time alone; " + RANKS),
    Textbook("Airy's functions", "y'' = x*y", 8, "[L]"),
    Textbook("Bessel, any order", "x^2*y'' + x*y' + (x^2 - n^2)*y = 0", 8, "[L]"),
    Textbook("quadratic in the slope, forced", "y'' + y'^2 = x", 8, "[L]: linear in exp(y)"),
    Textbook("unknown in place of the variable", "y'' = x*y'^3", 8, "[L]: x and y change places"),
    Textbook("great circles", "y'' = 2*cos(y)/sin(y)*y'^2 + sin(y)*cos(y)", 8, "[L]: linear in cot(y)"),
    Textbook("Airy's functions, plane", "x'' = t*x; y'' = t*y", 15, "[L]: sl(4)"),
    Textbook("geodesics of the sphere", GEODESICS, 5, "Feroze, Mahomed, Qadir 2006"),
    Textbook("third order, no constants", "y''' = x*y", 4, "Mahomed and Leach 1990: order + 1"),
    Textbook("products of Airy's functions", "y''' = 4*x*y' + 2*y", 7, "Mahomed and Leach 1990: iterative"),
    Textbook("Toda, two particles", "x'' = exp(y - x); y'' = -exp(y - x)", 5, RANKS),
]

PARTIAL = [
    Textbook("heat", "u_t = nu*u_xx", 6, "[O] 2.41"),
    Textbook("heat with drift and source", "u_t = u_xx + u_x + 1", 6, "[Ov]"),
    Textbook("heat, plane", "u_t = u_xx + u_yy", 9, "Goff 1927"),
    Textbook("heat, space", "u_t = u_xx + u_yy + u_zz", 13, "Goff 1927"),
    Textbook("heat in a parabola", "u_t = u_xx - x^2*u", 6, "[BK]"),
    Textbook("heat, inverse square", "u_t = u_xx + u/x^2", 4, "[BK]"),
    Textbook("heat, other potential", "u_t = u_xx + exp(-x^2)*u", 2, "[BK]"),
    Textbook("Ornstein-Uhlenbeck", "u_t = diff(x*u, x) + u_xx", 6, "[BK]"),
    Textbook("Black-Scholes", "V_t + s^2*S^2/2*V_SS + r*S*V_S = r*V", 6, "Gazizov and Ibragimov 1998"),
    Textbook("Kolmogorov", "u_t + x*u_y = u_xx", 8, "Kovalenko, Stogniy, Tertyshnyk 2014"),
    Textbook("Airy", "u_t = u_xxx", 4, "[O]"),
    Textbook("beam", "u_tt + u_xxxx = 0", 4, "[BK]"),
    Textbook("Burgers", "u_t + u*u_x = 0.1*u_xx", 5, "[O] 2.42"),
    Textbook("Burgers, forced", "u_t + u*u_x = u_xx + t^3", 5, "equivalent to Burgers"),
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
    Textbook("logarithmic source", "u_t = u_xx + u*log(u)", 4, "Dorodnitsyn 1982"),
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
    Textbook("wave, space", "u_tt = u_xx + u_yy + u_zz", 16, "[I]"),
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
    Textbook("fast diffusion, plane", "u_t = diff(u_x/u, x) + diff(u_y/u, y)", None, "[Ov]: conformal", (2, 1)),
    Textbook("NLS", "u_t = -v_xx - (u^2 + v^2)*v; v_t = u_xx + (u^2 + v^2)*u", 5, "Gagnon and Winternitz 1988"),
    Textbook(
        "NLS, quintic", "u_t = -v_xx - (u^2 + v^2)^2*v; v_t = u_xx + (u^2 + v^2)^2*u", 6, "Gagnon and Winternitz 1988"
    ),
    Textbook("Schroedinger", "u_t = -v_xx; v_t = u_xx", 7, "Niederer 1972, and the norm"),
    Textbook("KP", "u_xt + u_x^2 + u*u_xx + u_xxxx + u_yy = 0", None, DKLW, (3, 1)),
    Textbook(
        "Navier-Stokes, plane",
        "u_t + u*u_x + v*u_y = -p_x + nu*(u_xx + u_yy); v_t + u*v_x + v*v_y = -p_y + nu*(v_xx + v_yy); u_x + v_y = 0",
        None,
        "[O], Lloyd 1981",
        (3, 1),
    ),
    Textbook("heat, forced by a constant", "u_t = u_xx + 1", 6, "[O]: a particular solution"),
    Textbook("Burgers, constant force", "u_t + u*u_x = 0.1*u_xx + 1", 5, "equivalent to Burgers"),
    Textbook("Burgers, plane", "u_t + u*u_x = u_xx + u_yy", 5, "Edwards and Broadbridge 1995"),
    Textbook("Burgers-Huxley", "u_t = u_xx + u*u_x + u*(1 - u)*(u - a)", 2, "Estevez and Gordoa 1990"),
    Textbook("Newell-Whitehead", "u_t = u_xx + u - u^3", 2, "[I]"),
    Textbook("Sharma-Tasso-Olver", "u_t + 3*u_x^2 + 3*u^2*u_x + 3*u*u_xx + u_xxx = 0", 3, RANKS),
    Textbook("Sawada-Kotera", "u_t + 5*u*u_xxx + 5*u_x*u_xx + 5*u^2*u_x + u_xxxxx = 0", 3, "[I]"),
    Textbook("Kawahara", "u_t + u*u_x + u_xxx - u_xxxxx = 0", 3, RANKS),
    Textbook("K(2, 2)", "u_t + diff(u^2, x) + diff(u^2, x, 3) = 0", 3, RANKS),
    Textbook("KdV, decimal", "u_t + 6*u*u_x + 0.1*u_xxx = 0", 4, "[O] 2.44"),
    Textbook("KdV, damped", "u_t + u*u_x + u_xxx + 0.3*u = 0", 3, RANKS),
    Textbook("Zakharov-Kuznetsov", "u_t + u*u_x + u_xxx + u_xyy = 0", 5, RANKS),
    Textbook("shallow water", SHALLOW, 9, "Levi, Nucci, Rogers, Winternitz 1989"),
    Textbook("shallow water, line", "h_t + u*h_x + h*u_x = 0; u_t + u*u_x + h_x = 0", None, "hodograph", (2, 1)),
    Textbook("gas, line", GAS_LINE.format("g"), 6, "[Ov]"),
    Textbook("gas, line, cubic", GAS_LINE.format("3"), 7, "[Ov]: projective"),
    Textbook("gas, plane", GAS_PLANE.format("g"), 9, "[Ov]"),
    Textbook("gas, plane, monatomic", GAS_PLANE.format("2"), 10, "[Ov]: projective"),
    Textbook("Euler, plane", EULER, None, "[O] 2.45; Buchnev 1971", (3, 1)),
    Textbook("Maxwell", MAXWELL, 17, "[I]: conformal, duality, scaling"),
    Textbook("boundary layer", "u*u_x + v*u_y = u_yy; u_x + v_y = 0", None, "[Ov]", (1, 1)),
    Textbook("boundary layer, stream function", "u_y*u_xy - u_x*u_yy = u_yyy", None, "[Ov]", (1, 1)),
    Textbook("Zabolotskaya-Khokhlov", "u_xt - diff(u*u_x, x) - u_yy = 0", None, "Schwarz 1987", (3, 1)),
    Textbook("Liouville, elliptic", "u_xx + u_yy = exp(u)", None, "[L]: conformal", (2, 1)),
    Textbook("Hirota-Satsuma", "u_t = u_xxx/2 + 3*u*u_x - 6*v*v_x; v_t = -v_xxx - 3*u*v_x", 3, RANKS),
    Textbook("Broer-Kaup", "u_t + u*u_x + v_x = 0; v_t + u*v_x + v*u_x + u_xxx = 0", 4, RANKS),
    Textbook("Thomas", "u_xy + u_x + 2*u_y + u_x*u_y = 0", None, "[BK]: linear in exp(u)", (2, 1)),
    Textbook("square root process", "u_t = x*u_xx", 4, "[BK]: an inverse square"),
    Textbook("Euler-Poisson-Darboux", "u_tt = u_xx + k*u_x/x", 4, "[I]"),
    Textbook("Boussinesq, improved", "u_tt - u_xx - diff(u^2, x, 2) - u_xxtt = 0", 3, RANKS),
    Textbook("equal width", "u_t + u*u_x - u_xxt = 0", 3, RANKS),
    Textbook("Fornberg-Whitham", "u_t - u_xxt + u_x + u*u_x = u*u_xxx + 3*u_x*u_xx", 3, CMP),
    Textbook("Novikov", "u_t - u_xxt + 4*u^2*u_x = 3*u*u_x*u_xx + u^2*u_xxx", 5, "Bozhkov, Freire, Ibragimov 2014"),
    Textbook("porous medium, plane", "u_t = diff(u^m*u_x, x) + diff(u^m*u_y, y)", 6, "[Ov]"),
    Textbook("Hamilton-Jacobi, plane", "u_t + u_x^2 + u_y^2 = 0", 15, "[I]: conformal"),
    Textbook("eikonal, elliptic", "u_x^2 + u_y^2 = 1", 10, "[I]: conformal"),
    Textbook("eikonal, space", "u_x^2 + u_y^2 + u_z^2 = 1", 15, "[I]: conformal"),
    Textbook(
        "constant mean curvature",
        "(1 + u_y^2)*u_xx - 2*u_x*u_y*u_xy + (1 + u_x^2)*u_yy = 2*(1 + u_x^2 + u_y^2)^(3/2)",
        6,
        "Euclidean group",
    ),
    Textbook("constant curvature", "u_xx*u_yy - u_xy^2 = (1 + u_x^2 + u_y^2)^2", 6, "Euclidean group"),
    Textbook("Brusselator", "u_t = u_xx + 1 - 4*u + u^2*v; v_t = 2*v_xx + 3*u - u^2*v", 2, RANKS),
    Textbook("Lotka-Volterra, diffusive", "u_t = u_xx + u*(1 - u - v); v_t = v_xx + v*(1 - u - 2*v)", 2, RANKS),
    Textbook("Zakharov", "u_t = -v_xx + w*v; v_t = u_xx - w*u; w_tt - w_xx = diff(u^2 + v^2, x, 2)", 5, RANKS),
    Textbook("Klein-Gordon, plane", "u_tt = u_xx + u_yy - u", 7, "[I]"),
    Textbook("Klein-Gordon, cubic, plane", "u_tt = u_xx + u_yy + u^3", 7, "[I]"),
    Textbook("wave, cubic, space", "u_tt = u_xx + u_yy + u_zz + u^3", 15, "[I]: conformal"),
    Textbook("NLS, plane", NLS_PLANE, 9, "Niederer 1972: critical"),
    Textbook("string, inverse square of the slope", "u_tt = u_xx/u_x^2", 6, RANKS),
    Textbook("biharmonic", "u_xxxx + 2*u_xxyy + u_yyyy = 0", 7, RANKS),
    Textbook("transonic", "u_x*u_xx + u_yy = 0", 6, RANKS),
    Textbook("heat, forced by a wave", "u_t = u_xx + sin(x)", 6, "[O]: a particular solution"),
    Textbook("wave, forced", "u_tt = u_xx + u_yy + x", 11, "[O]: a particular solution"),
    Textbook("Poisson", "u_xx + u_yy + u_zz = 1", 11, "[O]: a particular solution"),
    Textbook("sine-Gordon, time", "u_tt - u_xx = sin(u)", 3, "[I]"),
    Textbook("double sine-Gordon", "u_tt - u_xx = sin(u) + sin(2*u)", 3, "[I]"),
    Textbook("diffusion, root", "u_t = diff(sqrt(u)*u_x, x)", 4, "[Ov]"),
    Textbook("Richards", "u_t = diff(u^m*u_x, x) - u^k*u_x", 3, "Oron and Rosenau 1986"),
    Textbook("modified KdV, two fields", MKDV_TWO, 4, RANKS),
    Textbook("curvature of a graph", "u_t = u_xx/(1 + u_x^2)^(3/2)", 4, RANKS),
]

CATALOGUE = [*ORDINARY, *PARTIAL]
