"""greenline.hub.native_callers: the calls of Python by native code in progress are counted."""

import ctypes

from greenline.hub.native_callers import find_depth

KIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def test_calls_by_native_code_are_counted() -> None:
    depth = find_depth()
    assert depth is not None
    found: list[int] = []

    def sort(levels: int) -> None:
        def compare(*_: object) -> int:
            found.append(depth())
            if levels:
                sort(levels - 1)
            return 0

        ctypes.CDLL(None).qsort((ctypes.c_int * 2)(1, 2), 2, 4, KIND(compare))

    before = depth()
    sort(1)
    assert found == [before + 1, before + 2]
    assert depth() == before


def test_calls_by_functions_of_python_are_not() -> None:
    depth = find_depth()
    assert depth is not None
    found: list[int] = []
    sorted([1, 2], key=lambda number: found.append(depth()) or number)
    assert found == [depth()] * 2
