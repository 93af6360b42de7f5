"""A call as stages to look at, without running it: ``funcaot.lower``, called by users.

It makes a ``Lowered``: the graphs of a call, their code and cost, and the compiled function.
"""
