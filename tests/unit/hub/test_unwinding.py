"""greenline.hub.unwinding: clean-up after an exception is distinguished from going on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from weakref import ref

import gevent
import pytest

from greenline.hub.unwinding import is_releasing, is_unwinding

kept: list[BaseException] = []


class Thrown(TimeoutError):
    """What is thrown in these tests."""


def wait() -> None:
    gevent.sleep(60)


class SlowExit:
    """A context manager whose end waits."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        wait()


@contextmanager
def slow_end() -> Iterator[None]:
    """Wait at the end of the block."""
    try:
        yield
    finally:
        wait()


def wrapping() -> None:
    try:
        wait()
    except TimeoutError as error:
        raise ValueError("wrapped") from error


def in_finally() -> None:
    try:
        wait()
    finally:
        wait()


def in_except() -> None:
    try:
        wait()
    except TimeoutError:
        wait()


def in_except_with_a_name() -> None:
    try:
        wait()
    except TimeoutError as error:
        kept.extend([error] * 0)
        for _ in range(1):
            wait()


def in_the_second_except() -> None:
    try:
        wait()
    except ValueError:
        raise
    except (KeyError, TimeoutError):
        if kept is not None:
            wait()


def in_a_try_of_an_except() -> None:
    try:
        wait()
    except TimeoutError:
        try:
            wait()
        finally:
            kept.clear()


def in_a_handler_of_another_error() -> None:
    try:
        wait()
    except TimeoutError:
        try:
            raise KeyError
        except KeyError:
            wait()


def in_an_exit() -> None:
    with SlowExit():
        wait()


def in_a_managers_generator() -> None:
    with slow_end():
        wait()


def in_a_generator() -> None:
    def parts() -> Iterator[int]:
        try:
            wait()
            yield 1
        finally:
            wait()

    list(parts())


def in_a_caller() -> None:
    try:
        in_nothing()
    finally:
        wait()


def in_nothing() -> None:
    wait()


def in_a_caller_after_it_was_wrapped() -> None:
    with SlowExit():
        wrapping()


def in_a_loop_with_a_return() -> None:
    while True:
        try:
            wait()
        except TimeoutError as error:
            if error is not None:
                wait()
            return


def after_an_except() -> None:
    with suppress(TimeoutError):
        wait()
    wait()


def after_an_except_that_kept_it() -> None:
    try:
        wait()
    except TimeoutError as error:
        kept.append(error)
    wait()


def in_a_finally_after_it_was_swallowed() -> None:
    try:
        with suppress(TimeoutError):
            wait()
    finally:
        wait()


def again_in_a_loop() -> None:
    for _ in range(2):
        try:
            wait()
        except TimeoutError as error:
            kept.append(error)


def again_within_an_older_handler() -> None:
    try:
        raise KeyError
    except KeyError:
        after_an_except_that_kept_it()


def again_in_an_else() -> None:
    try:
        after = suppress(TimeoutError)
        with after:
            wait()
    except ValueError:
        raise
    else:
        wait()


def look(code: Callable[[], None]) -> bool:
    """Throw into *code* where it waits, and return whether it unwinds where it waits then."""
    kept.clear()
    working = gevent.spawn(code)
    gevent.sleep(0)
    gevent.sleep(0)
    error = Thrown("thrown")
    thrown = ref(error)
    holder = [error]
    del error
    gevent.get_hub().loop.run_callback(lambda: working.throw(holder.pop()))
    gevent.sleep(0)
    gevent.sleep(0)
    assert not holder
    assert working, "it ended"
    try:
        return is_unwinding(working, thrown)
    finally:
        working.kill()


@pytest.mark.parametrize(
    "code",
    [
        in_finally, in_except, in_except_with_a_name, in_the_second_except, in_a_try_of_an_except,
        in_a_handler_of_another_error, in_an_exit, in_a_managers_generator, in_a_generator,
        in_a_caller, in_a_caller_after_it_was_wrapped, in_a_loop_with_a_return,
    ],
    ids=lambda code: code.__name__,
)  # fmt: skip
def test_clean_up_unwinds(code: Callable[[], None]) -> None:
    """A handler that the exception has entered waits, or something that it calls does."""
    assert look(code)


@pytest.mark.parametrize(
    "code",
    [
        after_an_except, after_an_except_that_kept_it, in_a_finally_after_it_was_swallowed,
        again_in_a_loop, again_within_an_older_handler, again_in_an_else,
    ],
    ids=lambda code: code.__name__,
)  # fmt: skip
def test_code_that_swallowed_the_exception_goes_on(code: Callable[[], None]) -> None:
    """It waits again, whether or not something keeps the exception."""
    assert not look(code)


class SlowEnter:
    """A context manager whose begin waits."""

    def __enter__(self) -> None:
        wait()

    def __exit__(self, *_: object) -> None: ...


def manager_that_is_made_slowly() -> SlowEnter:
    wait()
    return SlowEnter()


@contextmanager
def slow_end_without_finally() -> Iterator[None]:
    """Wait after a block that has raised nothing."""
    yield
    wait()


def finally_() -> None:
    try:
        kept.clear()
    finally:
        if kept is not None:
            wait()


def finally_after_another_error() -> None:
    try:
        int("x")
    finally:
        wait()


def finally_of_a_return() -> int:
    for _ in range(2):
        try:
            return int("1")
        finally:
            wait()
    return 0


def finally_around_an_except() -> None:
    try:
        try:
            int("x")
        except ValueError:
            kept.clear()
    finally:
        wait()


def exit_() -> None:
    with SlowExit():
        kept.clear()


def exit_after_another_error() -> None:
    with SlowExit():
        int("x")


def exit_of_a_return() -> int:
    with SlowExit():
        return int("1")


def exit_of_the_first() -> None:
    with SlowExit(), nullcontext():
        kept.clear()


def exit_of_the_second() -> None:
    with nullcontext(), SlowExit():
        kept.clear()


def exit_of_a_generator() -> None:
    with slow_end_without_finally():
        kept.clear()


def enter() -> None:
    with SlowEnter():
        kept.clear()


def enter_the_second() -> None:
    with nullcontext(), SlowEnter():
        kept.clear()


def enter_the_first() -> None:
    with SlowEnter(), nullcontext():
        kept.clear()


def make_a_manager() -> None:
    with nullcontext(), manager_that_is_made_slowly():
        kept.clear()


def in_a_with() -> None:
    with nullcontext():
        wait()


def in_a_try() -> None:
    while True:
        try:
            wait()
        except ValueError:
            continue
        finally:
            kept.clear()


def in_an_except_of_another_error() -> None:
    try:
        int("x")
    except ValueError:
        wait()


def in_an_else() -> None:
    try:
        kept.clear()
    except ValueError:
        kept.clear()
    else:
        wait()


def after_a_finally() -> None:
    try:
        kept.clear()
    finally:
        kept.clear()
    wait()


def finally_behind_an_except() -> None:
    try:
        kept.clear()
    except KeyError:
        kept.clear()
        raise
    finally:
        wait()


def finally_behind_an_except_that_was_entered() -> None:
    try:
        raise KeyError
    except KeyError:
        kept.clear()
    finally:
        wait()


def exit_of_a_block_that_only_raises() -> None:
    with SlowExit():
        raise KeyError


def return_behind_an_except() -> object:
    try:
        value = kept.copy()
    except KeyError:
        value = []
    return wait_for(value)


def return_behind_an_except_that_was_entered() -> object:
    try:
        raise KeyError
    except KeyError:
        pass
    return wait_for(None)


def return_behind_a_with() -> object:
    with suppress(KeyError):
        value = kept.copy()
    return wait_for(value)


def wait_for(value: object) -> object:
    wait()
    return value


def releases(code: Callable[[], object]) -> bool:
    """Return whether *code* releases something where it waits."""
    working = gevent.spawn(code)
    gevent.sleep(0)
    gevent.sleep(0)
    assert working, "it ended"
    try:
        return is_releasing(working)
    finally:
        working.kill()


@pytest.mark.parametrize(
    "code",
    [
        finally_, finally_after_another_error, finally_of_a_return, finally_around_an_except, exit_,
        exit_after_another_error, exit_of_a_return, exit_of_the_first, exit_of_the_second,
        exit_of_a_generator, finally_behind_an_except, finally_behind_an_except_that_was_entered,
        exit_of_a_block_that_only_raises,
    ],
    ids=lambda code: code.__name__,
)  # fmt: skip
def test_the_end_of_a_block_releases(code: Callable[[], object]) -> None:
    """Whether the block has raised an error, has returned or has come to its end."""
    assert releases(code)


@pytest.mark.parametrize(
    "code",
    [
        enter, enter_the_first, enter_the_second, make_a_manager, in_a_with, in_a_try,
        in_an_except_of_another_error, in_an_else, after_a_finally, return_behind_an_except,
        return_behind_an_except_that_was_entered, return_behind_a_with,
    ],
    ids=lambda code: code.__name__,
)  # fmt: skip
def test_a_blocks_begin_and_its_work_release_nothing(code: Callable[[], object]) -> None:
    """Though the compiler gives a manager's begin and its end one position in the source."""
    assert not releases(code)
