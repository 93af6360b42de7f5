"""C++ kernels of Inductor for the CPU: in files, compiled together and early."""

from funcaot._torch.inductor.kernels.early import started_early
from funcaot._torch.inductor.kernels.together import compiled_together, load

__all__ = ["compiled_together", "load", "started_early"]
