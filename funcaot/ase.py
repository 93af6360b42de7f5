"""An ASE calculator that runs an artifact of ``funcaot.export``; needs the extra ``funcaot[ase]``.

Importing it imports neither the pipeline nor a compiler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from funcaot.errors import ArgumentError, FuncaotError
from funcaot.exported.load import load

try:
    from ase.calculators.calculator import Calculator as _Calculator  # pyright: ignore
    from ase.calculators.calculator import all_changes  # pyright: ignore
    from ase.stress import full_3x3_to_voigt_6_stress  # pyright: ignore
except ImportError as error:
    raise FuncaotError(
        "funcaot.ase needs ASE, which isn't installed.",
        remedy='install it: pip install "funcaot[ase]".',
    ) from error

# What an artifact may be given of the atoms.
_INPUTS = {
    "positions": lambda atoms: atoms.get_positions(),
    "numbers": lambda atoms: atoms.get_atomic_numbers(),
    "cell": lambda atoms: atoms.cell.array,
    "pbc": lambda atoms: atoms.get_pbc(),
    "masses": lambda atoms: atoms.get_masses(),
    "charges": lambda atoms: atoms.get_initial_charges(),
}
_SHAPES = {"energy": 0, "forces": 2, "stress": 2, "energies": 1, "dipole": 1, "charges": 1}


class Calculator(_Calculator):
    """Energies, forces and stress of an artifact, in ASE's units.

    Attributes:
        artifact: What ``funcaot.load`` returned.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[str] = ("positions",),
        outputs: Sequence[str] = ("energy", "forces"),
        **keywords: Any,
    ) -> None:
        """Load the artifact.

        Args:
            path: What ``funcaot.export`` wrote: a function of tensors, in the order of
                ``inputs``, each of any floating or integer dtype. Its results are a dictionary,
                or a tuple in the order of ``outputs``.
            inputs: What of the atoms it is given: ``positions`` (atoms, 3), ``numbers`` (atoms,),
                ``cell`` (3, 3), ``pbc`` (3,), ``masses`` (atoms,) or ``charges`` (atoms,).
            outputs: What it returns: ``energy`` (), ``forces`` (atoms, 3), ``stress`` (3, 3),
                ``energies`` (atoms,), ``dipole`` (3,) or ``charges`` (atoms,).
            **keywords: Passed on to ASE's base class.

        Raises:
            ArtifactError: If the artifact can't be loaded.
            ArgumentError: If it takes another number of tensors, or a name isn't one of these.

        Example:
            >>> import funcaot.ase  # doctest: +SKIP
            >>> atoms.calc = funcaot.ase.Calculator("potential.pt2")  # doctest: +SKIP
            >>> atoms.get_forces()  # doctest: +SKIP
        """
        self.artifact = load(path)
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._check(os.fspath(path))
        self._dtypes = [getattr(torch, t.dtype) for t in self.artifact.signature.tensors]
        self.implemented_properties = list(self._outputs)
        super().__init__(**keywords)

    def _check(self, path: str) -> None:
        """Compare the names with each other and with the artifact.

        Raises:
            ArgumentError: If they don't fit.
        """
        for what, names, known in (
            ("inputs", self._inputs, _INPUTS),
            ("outputs", self._outputs, _SHAPES),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ArgumentError(
                    f"funcaot.ase.Calculator was given {what} that it doesn't know.",
                    expected=f"some of {sorted(known)}",
                    got=repr(unknown),
                    remedy="export a function of these, or call the artifact by funcaot.load.",
                )
        tensors = self.artifact.signature.tensors
        expected = [f"args[{index}]" for index in range(len(self._inputs))]
        if [tensor.name for tensor in tensors] != expected:
            raise ArgumentError(
                f"The artifact {path} takes other arguments than the calculator gives it.",
                expected=f"{len(expected)} positional tensors: {', '.join(self._inputs)}",
                got=", ".join(f"{tensor.name} {tensor}" for tensor in tensors),
                remedy="name what it takes with inputs=(...), or export a function of these.",
            )

    def check_state(self, atoms: Any, tol: float = 1e-15) -> list[str]:
        """What of some atoms isn't as it was in the last calculation; ASE asks at each step.

        Numbers are compared exactly, unless another tolerance is asked for: ASE's own comparison
        takes longer than a small system's forces.
        """
        before = self.atoms
        if before is None or tol != 1e-15:
            return list(super().check_state(atoms, tol))
        asked = [name for name in all_changes if name not in self.ignored_changes]
        return [name for name in asked if not _is_same(_part(before, name), _part(atoms, name))]

    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Run the artifact; ASE calls this when something of the atoms has changed."""
        super().calculate(atoms, list(properties), list(system_changes))
        given = [
            torch.from_numpy(np.ascontiguousarray(_INPUTS[name](self.atoms))).to(dtype)
            for name, dtype in zip(self._inputs, self._dtypes, strict=True)
        ]
        found = self.artifact(*given)
        if not isinstance(found, Mapping):
            values = found if isinstance(found, tuple | list) else (found,)
            if len(values) != len(self._outputs):
                raise self._other_results(f"{len(values)} results")
            found = dict(zip(self._outputs, values, strict=True))
        for name in self._outputs:
            if name not in found or found[name].dim() != _SHAPES[name]:
                raise self._other_results(
                    ", ".join(f"{key}{list(value.shape)}" for key, value in found.items())
                )
            value = found[name].double().numpy()
            if name == "energy":
                self.results[name] = float(value)
            else:
                voigt = name == "stress"
                self.results[name] = full_3x3_to_voigt_6_stress(value) if voigt else value

    def _other_results(self, got: str) -> ArgumentError:
        return ArgumentError(
            f"The artifact {self.artifact.signature.name} doesn't return what the calculator "
            "expects.",
            expected=", ".join(f"{name} of {_SHAPES[name]} dimensions" for name in self._outputs),
            got=got,
            remedy="name what it returns with outputs=(...), or return a dictionary.",
        )


def _part(atoms: Any, name: str) -> Any:
    """An array of the atoms, by ASE's name of what may have changed; None if they have none."""
    if name == "cell":
        return atoms.cell.array
    return atoms.pbc if name == "pbc" else atoms.arrays.get(name)


def _is_same(before: Any, now: Any) -> bool:
    if before is None or now is None:
        return before is now
    return np.array_equal(before, now)
