"""What Inductor generates for a compiled function, and what of it is inside of loops."""

import torch
from torch._inductor.utils import run_and_get_code


def run_for_code(run):
    """What a function returns, and the code that Inductor generates meanwhile."""
    with torch._inductor.config.patch(force_disable_caches=True):
        result, codes = run_and_get_code(run)
    return result, "\n".join(codes)


def lines_in_loops(code, text):
    """Lines of the C++ that have a text in them and are inside of a loop."""
    loops, found = [], []
    for line in code.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() == "}" and loops and loops[-1] == indent:
            loops.pop()
        elif line.lstrip().startswith("for("):
            loops.append(indent)
        elif text in line and loops:
            found.append(line)
    return found
