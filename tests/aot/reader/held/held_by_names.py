"""Values held by names: globals, cells, defaults, functions, the process."""

from tests.aot.reader.held.places import HOLDERS, fixed, holder
from tests.aot.reader.held.worlds import Held, Reader

# --- names ---------------------------------------------------------------------------------------

HOLDERS.family("names")

fixed(
    "global_name",
    Held(
        "held",
        before="held = first",
        rebind="held = {new}",
        delete="del held",
        tolerant=(
            "globals().get('held', {default})",
            "(held if 'held' in globals() else {default})",
        ),
    ),
)
fixed(
    "global_name_or_error",
    Held(
        "held_or(first)",
        before="""
held = first
def held_or(default):
    try:
        return held
    except NameError:
        return default
""",
        rebind="held = {new}",
        delete="del held",
        error=False,
        tolerant=("held_or({default})",),
        place="held",
    ),
)
fixed(
    "builtin_hidden_by_a_global",
    Held("divmod", before="divmod = first", rebind="divmod = {new}"),
)
fixed("closure_cell", Held("held", cell=True, rebind="set_held({new})", place="get_held()"))
fixed(
    "closure_cell_of_a_helper",
    Held(
        "get_held()",
        before="""
def make(held):
    def get_held():
        return held
    def set_held(value):
        nonlocal held
        held = value
    def del_held():
        nonlocal held
        del held
    return get_held, set_held, del_held
get_held, set_held, del_held = make(first)
""",
        rebind="set_held({new})",
        delete="del_held()",
    ),
)


@holder(parameters=True)
def default_argument(reader: Reader):
    return Held(
        "held",
        parameter="held=first",
        rebind=f"{reader.function}.__defaults__ = ({{new}},)",
        place=f"{reader.function}.__defaults__[0]",
    )


@holder(parameters=True)
def keyword_default(reader: Reader):
    defaults = f"{reader.function}.__kwdefaults__"
    return Held(
        "held",
        parameter="*, held=first",
        rebind=f"{defaults}['held'] = {{new}}",
        place=f"{defaults}['held']",
    )


@holder(parameters=True)
def mutable_default(reader: Reader):
    place = f"{reader.function}.__defaults__[0][0]"
    return Held(
        "held[0]",
        parameter="held=[first]",
        rebind=f"{reader.function}.__defaults__[0][:] = [{{new}}]",
        delete=f"{reader.function}.__defaults__[0].clear()",
        tolerant=("(held[0] if held else {default})", "(held[0] if len(held) else {default})"),
        place=place,
    )


HOLDERS.family("functions")
fixed(
    "default_of_a_helper",
    Held(
        "keeper()",
        before="def keeper(held=first):\n    return held",
        rebind="keeper.__defaults__ = ({new},)",
        delete="keeper.__defaults__ = None",
    ),
)
fixed(
    "code_of_a_helper",
    Held(
        "keeper()",
        before="def keeper():\n    return first",
        rebind="keeper.__code__ = (lambda: {new}).__code__",
        programs=3,
    ),
)
fixed(
    "function_attribute",
    Held(
        "keeper.held",
        before="def keeper():\n    pass\nkeeper.held = first",
        rebind="keeper.held = {new}",
        delete="del keeper.held",
        tolerant=(
            "getattr(keeper, 'held', {default})",
            "(keeper.held if hasattr(keeper, 'held') else {default})",
        ),
    ),
)
fixed(
    "keyword_of_a_partial",
    Held(
        "keeper()",
        before="keeper = functools.partial(lambda held: held, held=first)",
        rebind="keeper.keywords['held'] = {new}",
    ),
)

# --- the process ---------------------------------------------------------------------------------

HOLDERS.family("names")

for _name, _access in {
    "environment_variable": "os.environ['WORLD']",
    "environment_variable_by_getenv": "os.getenv('WORLD')",
    "environment_variable_by_get": "os.environ.get('WORLD')",
}.items():
    fixed(
        _name,
        Held(
            _access,
            before="os.environ['WORLD'] = first",
            rebind="os.environ['WORLD'] = {new}",
            delete="del os.environ['WORLD']",
            tolerant=("os.environ.get('WORLD', {default})", "os.getenv('WORLD', {default})"),
        ),
        values=("str",),
    )
