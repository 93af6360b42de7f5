"""The words of reports: tooltips in notebooks; the docs' glossary has the same ones."""

from __future__ import annotations

# A word as a report writes it, and what it means there.
WORDS: dict[str, str] = {
    "signature": "What a call looks like: structure, tensor metadata, values that aren't tensors, "
    "global state. One signature, one program.",
    "entry": "One signature with what was compiled for it.",
    "graph": "The operations that a program runs, without effects; what a compiler is given.",
    "shared": "A graph that came out equal to an earlier one, but for strides, and runs its "
    "executable.",
    "backward": "The derivative of a graph, traced when autograd first invokes it with gradients "
    "that look like these.",
    "pushforward": "A derivative in forward mode, traced when a tangent first arrives.",
    "cache hit": "A call that was served by a program that was there.",
    "miss": "A call that had to be captured.",
    "residual": "A value that a forward keeps for its backward. Bytes count only where it is "
    "neither an input nor an output, which exist anyway.",
    "guard": "What has to be true of open sizes for a program to serve a call.",
    "open size": "A size that a program leaves open: a symbol, which stands for every size of at "
    "least 2.",
    "opaque": "A Function that can't be traced and runs on real values between compiled parts.",
    "mutation": "An input that is overwritten.",
    "alias": "An output that is an input, or shares memory with one or with another output.",
    "check": "What a call is compared by besides its arguments: what the code reads of its "
    "surroundings.",
    "tangent": "A gradient that arrives at a backward, or a direction of forward mode.",
    "capture": "The stage that runs the Python code once, on tensors without values.",
    "lower": "The stage that turns a graph into an executable; compilers spend their time here.",
}
