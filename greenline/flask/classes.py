"""Make a subclass that takes the place of a class which an application has made."""

from abc import ABCMeta
from typing import Any


def stand_in(cls: type[Any], *others: type[Any], **attributes: Any) -> type[Any]:
    """
    Return a subclass of *cls* and *others* that has the name and the metaclass of *cls*.

    :param attributes: what the subclass defines.
    :raises TypeError: it cannot be made, or the application may notice; the text says why.
    """
    if type(cls) not in (type, ABCMeta):
        raise TypeError(f"its metaclass is {type(cls).__name__}")
    # It may register the subclass, for instance.
    if any("__init_subclass__" in vars(one) for one in cls.__mro__[:-1]):
        raise TypeError("it has an __init_subclass__ of its own")
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    metaclass: Any = type(cls)
    made: type[Any] = metaclass(cls.__name__, (cls, *others), names | attributes)
    return made
