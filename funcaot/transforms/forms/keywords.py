"""The rule for keyword-only arguments of forward."""

from __future__ import annotations

from funcaot.operator.operator import custom_function_call
from funcaot.rules.keywords import with_keywords

custom_function_call.register("keywords")(with_keywords)
