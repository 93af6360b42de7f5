"""Values held by objects that stand for others, whose attributes they look up by code."""

from tests.aot.reader.held.held_by_objects import held_by_object
from tests.aot.reader.held.places import HOLDERS

HOLDERS.family("objects")

PROXY = """
class Proxy:
    __class__ = property(lambda self: type(object.__getattribute__(self, "_target")))
    __dict__ = property(lambda self: object.__getattribute__(self, "_target").__dict__)
    __module__ = property(lambda self: object.__getattribute__(self, "_target").__module__)
    __slots__ = ("_target",)
    def __init__(self, target):
        object.__setattr__(self, "_target", target)
    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "_target"), name)
    def __setattr__(self, name, value):
        setattr(object.__getattribute__(self, "_target"), name, value)
    def __delattr__(self, name):
        delattr(object.__getattribute__(self, "_target"), name)
class Box:
    pass
inner = Box()
"""
held_by_object("proxy", PROXY + "box = Proxy(inner)\nbox.held = first", "box.held")
held_by_object(
    "proxy_whose_target_is_replaced",
    PROXY + "box = Proxy(inner)\nbox.held = first",
    "box.held",
    tolerant=False,
    rebind="another = Box(); another.held = {new}; object.__setattr__(box, '_target', another)",
    programs=3,
)
held_by_object(
    "proxy_of_what_a_function_returns",
    """
class Local:
    __slots__ = ("_find",)
    def __init__(self, find):
        object.__setattr__(self, "_find", find)
    def __getattr__(self, name):
        return getattr(self._find(), name)
    def __setattr__(self, name, value):
        setattr(self._find(), name, value)
    def __delattr__(self, name):
        delattr(self._find(), name)
stack = [types.SimpleNamespace(held=first)]
box = Local(lambda: stack[-1])
""",
    "box.held",
)
