"""The generated cases can fail: each mistake planted in a rule or in the pipeline is found."""

import pytest

from funcaot.testing.composition import parse
from funcaot.testing.generator import Mismatch, cases_of
from tests.testing.planted_bugs import PLANTED
from tests.testing.planted_functions import INFOS
from tests.testing.planted_in_pipeline import IN_PIPELINE
from tests.testing.planted_in_rules import IN_RULES

CASES = [
    pytest.param(mistake, function, composition, id=f"{mistake.name}: {function}-{composition}")
    for mistake in (*IN_RULES, *IN_PIPELINE)
    for function, composition in mistake.found_by
]


@pytest.mark.parametrize(("mistake", "function", "composition"), CASES)
def test_planted_mistake_is_found(mistake, function, composition, monkeypatch):
    chains = [parse(composition)]
    case = next(cases_of(INFOS[function], chains, all_samples=False, device="cpu"))
    case.run()
    mistake.plant(monkeypatch)
    with pytest.raises((Mismatch, RuntimeError)):
        case.run()
    monkeypatch.undo()
    case.run()


def test_enough_mistakes_are_planted():
    assert len(IN_RULES) >= 8
    assert len(IN_RULES) + len(IN_PIPELINE) >= 20
    assert len(PLANTED) >= 20
