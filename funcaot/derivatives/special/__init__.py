"""Special functions that torch takes for constants; they have derivatives once this is imported.

A compiled function gives what eager gives, and eager gives no gradient for these, without an error.
So this is for those who ask for it, before they compile:

    >>> import torch, funcaot
    >>> import funcaot.derivatives.special
    >>> with funcaot.install():
    ...     torch.func.grad(torch.special.bessel_j0)(torch.tensor(1.0))
    tensor(-0.4401)
"""

import importlib

RULES = (
    "bessel_j",
    "bessel_y",
    "chebyshev",
    "hermite",
    "laguerre",
    "legendre",
    "modified_bessel_i",
    "modified_bessel_k",
    "scaled_modified_bessel_k",
    "shifted_chebyshev",
    "spherical_bessel_j",
)

for _name in RULES:
    importlib.import_module(f"{__name__}.{_name}")
