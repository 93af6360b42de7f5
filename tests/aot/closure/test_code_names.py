"""Which names some code reads."""

import dis

from funcaot.aot.closure.named import code_names


def test_code_of_a_large_library_is_read_once(monkeypatch):
    """A walk over more code than a small cache holds doesn't read all of it again the next time."""
    space: dict = {}
    exec("\n".join(f"def f{i}(x): return x.a{i}" for i in range(5000)), space)
    codes = [space[f"f{i}"].__code__ for i in range(5000)]
    read = []
    instructions = dis.get_instructions

    def noting(code, **options):
        read.append(code)
        return instructions(code, **options)

    monkeypatch.setattr(dis, "get_instructions", noting)
    for _ in range(2):
        assert [code_names.names_of(code).used for code in codes[:3]] == [{"a0"}, {"a1"}, {"a2"}]
        for code in codes:
            code_names.names_of(code)
    assert len(read) == 5000
