"""What the operator costs: ``python benchmarks/operator.py``; see ``operator_overhead``."""

import sys

if __name__ == "operator":
    # A script of this folder was started by its path, so this file was found where the standard
    # library's module is meant. What is in sys.modules afterwards is what the import returns.
    folder = sys.path.pop(0)
    del sys.modules["operator"]
    import operator  # noqa: F401

    sys.path.insert(0, folder)
elif __name__ == "__main__":
    from operator_overhead import main

    main()
