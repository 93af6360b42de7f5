"""Runs a script as torchrun's rank does, and leaves at its end: tests of examples start it.

torch keeps a group of gloo in caches of DTensor and in defaults of functions. Its threads then live
until the process ends, and one that frees a tensor at that moment aborts it: of a hundred processes
that end right after an asynchronous ``all_reduce``, sixteen to forty did, without funcaot, too.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
