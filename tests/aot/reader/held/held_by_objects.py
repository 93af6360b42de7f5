"""Values held by objects: of ``self`` where a method reads, else of a ``box`` that is a global."""

from dataclasses import dataclass

from tests.aot.reader.held.places import HOLDERS, Holder, fixed
from tests.aot.reader.held.worlds import Held, Reader

# --- attributes of self, or of a box -------------------------------------------------------------


@dataclass(frozen=True)
class _Object:
    """Whose attribute it is: the object's names inside and outside, and its class's."""

    inside: str
    outside: str
    kind: str
    own: bool

    def held(self, body: str = "", bases: str = "", before: str = "", **parts) -> Held:
        """The source text; a box gets its class here, a reader's ``self`` has one."""
        parts = {name: _filled(part, self) for name, part in parts.items()}
        if self.own:
            return Held(bases=bases, body=body, before=before, **parts)
        lines = "\n".join(f"    {line}" for line in (body or "pass").strip("\n").splitlines())
        source = f"{before}\nclass Box({bases}):\n{lines}\nbox = Box()\n"
        return Held(before=source + parts.pop("after", ""), **parts)


def _filled(value, made):
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return tuple(_filled(item, made) for item in value)
    names = {"i": made.inside, "o": made.outside, "k": made.kind}
    for name, text in names.items():
        value = value.replace(f"<{name}>", text)
    return value


def attribute(*, owner: str = "instance", **options):
    """Register a holder twice: for an attribute of ``self``, and for one of a global box."""

    def register(make):
        name = make.__name__

        def of_self(reader: Reader):
            return make(_Object(reader.itself, "owner", "Owner", own=True))

        HOLDERS.family("self")
        HOLDERS[f"own_{name}"] = Holder(of_self, owner=owner, **options)
        HOLDERS.family("boxes")
        held = make(_Object("box", "box", "Box", own=False))
        HOLDERS[name] = Holder(lambda reader: held, **options)
        return make

    return register


TOLERANT = (
    "getattr(<i>, 'held', {default})",
    "(<i>.held if hasattr(<i>, 'held') else {default})",
)
IN_VARS = (
    "vars(<i>).get('held', {default})",
    "(<i>.held if 'held' in <i>.__dict__ else {default})",
)


@attribute()
def instance_attribute(o: _Object):
    return o.held(
        access="<i>.held",
        after="<o>.held = first",
        rebind="<o>.held = {new}",
        delete="del <o>.held",
        tolerant=TOLERANT + IN_VARS,
        place="<o>.held",
    )


@attribute()
def private_instance_attribute(o: _Object):
    return o.held(
        access="<i>._held",
        after="<o>._held = first",
        rebind="<o>._held = {new}",
        place="<o>._held",
    )


@attribute()
def instance_attribute_by_vars(o: _Object):
    return o.held(
        access="vars(<i>)['held']",
        after="vars(<o>)['held'] = first",
        rebind="vars(<o>)['held'] = {new}",
        delete="del vars(<o>)['held']",
        place="vars(<o>)['held']",
    )


@attribute()
def instance_attribute_by_name(o: _Object):
    return o.held(
        access="getattr(<i>, 'he' + 'ld')",
        after="setattr(<o>, 'held', first)",
        rebind="setattr(<o>, 'held', {new})",
        place="<o>.held",
    )


@attribute()
def instance_attribute_by_attrgetter(o: _Object):
    return o.held(
        before="getter = operator.attrgetter('held')",
        access="getter(<i>)",
        after="<o>.held = first",
        rebind="<o>.held = {new}",
        place="<o>.held",
    )


@attribute()
def replaced_instance_dictionary(o: _Object):
    return o.held(
        access="<i>.held",
        after="<o>.held = first",
        rebind="<o>.__dict__ = dict(vars(<o>), held={new})",
        place="<o>.held",
    )


@attribute(owner="class", binds=True)
def class_attribute(o: _Object):
    return o.held(
        body="held = first",
        access="<i>.held",
        rebind="<k>.held = {new}",
        delete="del <k>.held",
        tolerant=TOLERANT,
        place="<k>.held",
    )


@attribute(binds=True)
def class_attribute_by_type(o: _Object):
    return o.held(
        body="held = first",
        access="type(<i>).held",
        rebind="<k>.held = {new}",
        delete="del <k>.held",
        tolerant=(
            "getattr(type(<i>), 'held', {default})",
            "vars(type(<i>)).get('held', {default})",
        ),
        place="<k>.held",
        programs=3,  # What is deleted and set again stands at the end of its class.
    )


@attribute(binds=True)
def instance_over_class(o: _Object):
    return o.held(
        body="held = first", access="<i>.held", rebind="<o>.held = {new}", undo="del <o>.held"
    )


@attribute(owner="class", binds=True)
def inherited(o: _Object):
    return o.held(
        before="class Base:\n    held = first",
        bases="Base",
        access="<i>.held",
        rebind="Base.held = {new}",
        delete="del Base.held",
        tolerant=TOLERANT,
        place="Base.held",
    )


@attribute(owner="class", binds=True)
def overridden_by_the_subclass(o: _Object):
    return o.held(
        before="class Base:\n    held = first",
        bases="Base",
        access="<i>.held",
        rebind="<k>.held = {new}",
        undo="del <k>.held",
    )


@attribute(owner="class", binds=True)
def mixin(o: _Object):
    return o.held(
        before="class Base:\n    held = first\nclass Mixin:\n    pass",
        bases="Mixin, Base",
        access="<i>.held",
        rebind="Mixin.held = {new}",
        undo="del Mixin.held",
    )


@attribute(owner="class", binds=True)
def replaced_bases(o: _Object):
    return o.held(
        before="""
class Base:
    held = first
class Other:
    held = first
class Middle(Base):
    pass
""",
        bases="Middle",
        access="<i>.held",
        rebind="Other.held = {new}; Middle.__bases__ = (Other,)",
        undo="Middle.__bases__ = (Base,)",
    )


@attribute(binds=True)
def by_super(o: _Object):
    return o.held(
        before="class Base:\n    held = first",
        bases="Base",
        access="super(<k>, <i>).held",
        rebind="Base.held = {new}",
        place="Base.held",
    )


@attribute(binds=True)
def replaced_class(o: _Object):
    return o.held(
        body="held = first",
        access="<i>.held",
        rebind="<o>.__class__ = type('Other', (<k>,), dict(held={new}))",
        undo="<o>.__class__ = <k>",
    )


@attribute()
def slot(o: _Object):
    return o.held(
        before="class Slotted:\n    __slots__ = ('held',)",
        bases="Slotted",
        access="<i>.held",
        after="<o>.held = first",
        rebind="<o>.held = {new}",
        delete="del <o>.held",
        tolerant=TOLERANT,
        place="<o>.held",
    )


@attribute()
def state_of_a_property(o: _Object):
    return o.held(
        body="""
@property
def held(self):
    if not self._hidden:
        raise AttributeError("held")
    return self._hidden[0]
""",
        access="<i>.held",
        after="<o>._hidden = [first]",
        rebind="<o>._hidden[:] = [{new}]",
        delete="<o>._hidden.clear()",
        tolerant=TOLERANT,
        place="<o>._hidden[0]",
    )


@attribute(owner="class")
def property_that_is_replaced(o: _Object):
    return o.held(
        body="held = property(lambda self: first)",
        access="<i>.held",
        rebind="other = {new}; <k>.held = property(lambda self: other)",
        undo="<k>.held = property(lambda self: first)",
        programs=3,
    )


@attribute()
def state_of_a_descriptor(o: _Object):
    return o.held(
        before="""
class Descriptor:
    def __init__(self, state):
        self.state = state
    def __get__(self, instance, owner=None):
        return self if instance is None else self.state
    def __set__(self, instance, value):
        self.state = value
""",
        body="held = Descriptor(first)",
        access="<i>.held",
        rebind="<o>.held = {new}",
        place="<o>.held",
    )


@attribute()
def state_behind_getattr(o: _Object):
    return o.held(
        before="""
class Looking:
    def __getattr__(self, name):
        if name == "held" and "state" in vars(self):
            return self.state["held"]
        return getattr(super(), "__getattr__", object().__getattribute__)(name)
""",
        bases="Looking",
        access="<i>.held",
        after="<o>.state = dict(held=first)",
        rebind="<o>.state['held'] = {new}",
        place="<o>.state['held']",
    )


@attribute()
def attribute_of_an_attribute(o: _Object):
    return o.held(
        access="<i>.settings.inner.held",
        after="<o>.settings = types.SimpleNamespace(inner=types.SimpleNamespace(held=first))",
        rebind="<o>.settings.inner.held = {new}",
        delete="del <o>.settings.inner.held",
        tolerant=("getattr(<i>.settings.inner, 'held', {default})",),
        place="<o>.settings.inner.held",
    )


@attribute()
def item_of_an_attribute(o: _Object):
    return o.held(
        access="<i>.settings['held']",
        after="<o>.settings = dict(held=first)",
        rebind="<o>.settings['held'] = {new}",
        delete="del <o>.settings['held']",
        tolerant=("<i>.settings.get('held', {default})",),
        place="<o>.settings['held']",
    )


# --- objects of other kinds ----------------------------------------------------------------------

HOLDERS.family("objects")


def held_by_object(
    name: str, before: str, access: str, tolerant: bool = True, binds: bool = False, **parts
) -> None:
    owner, _, attribute_name = access.rpartition(".")
    parts.setdefault("rebind", f"{access} = {{new}}")
    if tolerant:
        parts.setdefault("delete", f"del {access}")
        parts["tolerant"] = (
            f"getattr({owner}, {attribute_name!r}, {{default}})",
            f"({access} if hasattr({owner}, {attribute_name!r}) else {{default}})",
        )
    fixed(name, Held(access, before=before, **parts), binds=binds)


held_by_object("simple_namespace", "box = types.SimpleNamespace(held=first)", "box.held")
held_by_object("class_as_namespace", "class Box:\n    held = first", "Box.held")
held_by_object(
    "class_in_a_class", "class Box:\n    class Inner:\n        held = first", "Box.Inner.held"
)
held_by_object(
    "attribute_of_a_metaclass",
    "class Meta(type):\n    held = first\nclass Box(metaclass=Meta):\n    pass",
    "Box.held",
    rebind="Meta.held = {new}",
    delete="del Meta.held",
    binds=True,
)
held_by_object("module_object", "box = types.ModuleType('box')\nbox.held = first", "box.held")
held_by_object(
    "dataclass",
    "@dataclasses.dataclass\nclass Box:\n    held: object\nbox = Box(first)",
    "box.held",
)
held_by_object(
    "dataclass_with_slots",
    "@dataclasses.dataclass(slots=True)\nclass Box:\n    held: object\nbox = Box(first)",
    "box.held",
)
held_by_object(
    "frozen_dataclass_replaced",
    "@dataclasses.dataclass(frozen=True)\nclass Box:\n    held: object\nbox = Box(first)",
    "box.held",
    tolerant=False,
    rebind="box = dataclasses.replace(box, held={new})",
    programs=3,
)
held_by_object(
    "named_tuple_replaced",
    "Box = collections.namedtuple('Box', 'held')\nbox = Box(first)",
    "box.held",
    tolerant=False,
    rebind="box = box._replace(held={new})",
)
held_by_object(
    "member_of_an_enum",
    "class Choice(enum.Enum):\n    ONLY = 1\nChoice.ONLY.held = first",
    "Choice.ONLY.held",
)
held_by_object(
    "module_with_getattr",
    """
box = types.ModuleType("box")
exec("def __getattr__(name):\\n    return state[name]", vars(box))
box.state = dict(held=first)
""",
    "box.held",
    tolerant=False,
    rebind="box.state['held'] = {new}",
)
held_by_object(
    "module_with_lazy_names",
    """
box = types.ModuleType("box")
exec("def __getattr__(name):\\n    return made(name)", vars(box))
def made(name):
    if name != "held":
        raise AttributeError(name)
    return state.held
box.made = made
state = types.SimpleNamespace(held=first)
""",
    "box.held",
    rebind="state.held = {new}",
    delete="del state.held",
    programs=3,
)
held_by_object("thread_local", "box = threading.local()\nbox.held = first", "box.held")
held_by_object("object_in_a_list", "boxes = [types.SimpleNamespace(held=first)]", "boxes[0].held")
fixed(
    "imported_inside",
    Held(
        "__import__('sys').modules[__name__].held",
        before="held = first",
        rebind="held = {new}",
        place="held",
    ),
)
fixed(
    "context_variable",
    Held(
        "variable.get()",
        before="variable = contextvars.ContextVar('variable', default=first)",
        rebind="variable.set({new})",
    ),
)
fixed(
    "weak_reference",
    Held(
        "reference().held",
        before="""
class Box:
    pass
kept = Box()
kept.held = first
reference = weakref.ref(kept)
""",
        rebind="kept.held = {new}",
    ),
)
