"""greenline.slots: each slot table here stands for a process, as their locks exclude each other."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from greenline.slots import SlotTable
from greenline.slots.fairness import RESERVE_S
from greenline.slots.file import SlotFile
from greenline.slots.process_share import REQUEST_S
from greenline.slots.table import DEAD_S, LAST_RESORT, RESCUE_S
from tests.helpers.clock import Clock
from tests.helpers.support import CHECKOUT, environ
from tests.unit.slots.slot_tables import Open, taken


def test_all_together_hold_no_more_than_the_capacity(opened: Open) -> None:
    """Ten slots among three, each of which would take all of them."""
    three = [opened(10) for _ in range(3)]
    slots = [slot for _ in range(10) for one in three if (slot := one.take()) is not None]
    assert sorted(slot.number for slot in slots) == list(range(10))
    assert [one.take() for one in three] == [None, None, None]


def test_what_is_given_back_can_be_taken_by_another(opened: Open) -> None:
    """A slot goes round."""
    one, other = opened(1), opened(1)
    (slot,) = taken(one)
    assert other.take() is None
    one.give(slot)
    taken(other)


def test_nothing_can_be_taken_before_there_is_anything(path: Path) -> None:
    """The capacity is what the budget says, and is not guessed."""
    one = SlotTable(path)
    assert one.take() is None
    one.close()


@pytest.mark.parametrize("late", ["give", "abandon", "hold"])
def test_a_slot_that_was_given_back_is_not_ones_own_any_more(opened: Open, late: str) -> None:
    """Who acts on it twice hears of it, and the next holder's slot stays as it is."""
    one, other = opened(1), opened(1)
    (slot,) = taken(one)
    one.give(slot)
    (same,) = taken(other)
    same.hold(7)
    acts: dict[str, Callable[[], None]] = {
        "give": lambda: one.give(slot),
        "abandon": lambda: one.abandon(slot),
        "hold": lambda: slot.hold(8),
    }
    with pytest.raises(ValueError, match="slot 0"):
        acts[late]()
    assert same.pid == 7
    assert one.take() is None


def test_each_has_a_slot_for_control_and_one_for_its_pool(opened: Open) -> None:
    """With two reserved for each of three, one that takes all it gets leaves the others theirs."""
    first, *others = three = [opened(8, reserved=6) for _ in range(3)]
    assert len(taken(first, 3)) == 3  # one that is kept, and both that are shared
    assert first.take() is None
    for one in three:
        taken(one, for_control=True)
    assert first.take() is None
    for one in others:
        taken(one)
        assert one.take() is None
    assert first.stats()["free"] == 0


def test_a_control_connection_takes_a_shared_slot_when_none_is_kept_for_it(opened: Open) -> None:
    """More processes than the plan knew of: it waits for no turn, as the pools do."""
    one, late = opened(4, reserved=2), opened(4, reserved=2)
    slots = taken(one, 2)
    taken(one, for_control=True)
    late.request()
    one.give(slots[1])
    assert one.take() is None
    assert len(taken(one, for_control=True)) == 1


def test_a_control_connection_moves_to_a_slot_that_is_kept_for_it(opened: Open) -> None:
    """Its shared one is for the pools, which may take no kept one in its place."""
    one, other = opened(4, reserved=2), opened(4, reserved=2)
    kept = taken(other) + taken(other, for_control=True)
    (control,) = taken(one, for_control=True)
    control.hold(7)
    assert not control.is_kept
    one.orphans()
    assert not control.is_kept
    other.give(kept[1])
    one.orphans()
    assert control.is_kept
    assert control.pid == 7
    assert one.stats()["held_by_all"] == 2


def test_when_all_slots_are_orphans_one_process_can_ask_the_server(opened: Open) -> None:
    """A slot beside the capacity lets it in; it moves from there as soon as there is another."""
    victim, one, other = opened(2), opened(2), opened(2)
    for slot in taken(victim, 2):
        slot.hold(77)
    victim.close()
    assert one.take() is None
    (control,) = taken(one, for_control=True)
    control.hold(78)
    assert other.take(for_control=True) is None
    assert not one.is_over(control)
    first, second = one.orphans()
    one.give(first)
    one.orphans()
    assert (control.number, control.pid) == (0, 78)
    assert other.take(for_control=True) is None
    one.give(second)
    assert taken(other, for_control=True)[0].number == 1


def test_the_slot_beside_the_capacity_is_not_for_who_only_waits(opened: Open, clock: Clock) -> None:
    """Somebody holds slots and can look after them; only when that takes too long it is used."""
    holder, one = opened(2), opened(2)
    taken(holder, 2)
    assert one.take(for_control=True) is None
    clock.now += RESCUE_S - 1
    assert one.take(for_control=True) is None
    clock.now += 1
    assert taken(one, for_control=True)[0].number == LAST_RESORT


def test_the_slot_beside_the_capacity_is_used_again_when_its_last_user_is_dead_for_long(
    opened: Open, clock: Clock
) -> None:
    """There may be no process to ask for it, and the backend of a control connection is idle."""
    victim, one, other = opened(1), opened(1), opened(1)
    taken(victim)
    taken(victim, for_control=True)[0].hold(77)
    victim.close()
    assert one.take(for_control=True) is None
    clock.now += DEAD_S / 2
    assert one.take(for_control=True) is None
    assert other.take(for_control=True) is None
    clock.now += DEAD_S
    (control,) = taken(one, for_control=True)
    assert control.pid == 0
    assert one.take(for_control=True) is other.take(for_control=True) is None


def test_the_slot_beside_the_capacity_ages_however_often_it_is_abandoned(
    opened: Open, clock: Clock
) -> None:
    """Who cannot ask the server abandons what is in its care, again and again."""
    victim, one = opened(1), opened(1)
    taken(victim)
    taken(victim, for_control=True)[0].hold(77)
    victim.close()
    for _ in range(3):
        assert one.take(for_control=True) is None
        one.orphans()
        one.abandon_orphans()
        clock.now += DEAD_S / 3
    assert taken(one, for_control=True)[0].number == LAST_RESORT


def test_the_floor_can_be_more_than_one(opened: Open) -> None:
    """A pool that cannot change its size is kept at its floor by as many slots."""
    one, other = opened(8, reserved=8, floor=3), opened(8, reserved=8, floor=3)
    taken(one, 3)
    assert one.take() is None
    taken(other, 3)


def test_the_slots_of_a_killed_process_are_orphans(opened: Open, clock: Clock) -> None:
    """No process connects in their place before one has seen that the backend is gone."""
    victim, one, other = opened(3), opened(3), opened(3)
    connecting, held, _ = taken(victim, 3)
    held.hold(77)
    third = victim.stats()["held_by_all"]
    victim.close()
    assert one.take() is None
    clock.now += 5
    orphans = one.orphans()
    assert [(orphan.number, orphan.pid, orphan.since_s) for orphan in orphans] == [
        (connecting.number, 0, 1005.0),
        (held.number, 77, 1005.0),
        (2, 0, 1005.0),
    ]
    assert third == one.stats()["orphans"] == 3
    assert other.orphans() == []  # one looks after them
    clock.now += 5
    assert [orphan.since_s for orphan in one.orphans()] == [1005.0] * 3
    one.give(orphans[1])
    (slot,) = taken(other)
    assert (slot.number, slot.pid) == (held.number, 0)
    assert other.take() is None


def test_an_orphan_is_an_orphan_again_when_its_keeper_is_killed(opened: Open) -> None:
    """What is known of it outlives each of them."""
    victim, keeper, other = opened(2), opened(2), opened(2)
    taken(victim)[0].hold(77)
    victim.close()
    assert len(keeper.orphans()) == 1
    keeper.close()
    assert [orphan.pid for orphan in other.orphans()] == [77]


def test_an_abandoned_slot_is_looked_after_by_the_next_process(opened: Open) -> None:
    """Its backend may be there still, so it is not free."""
    one, other = opened(1), opened(1)
    (slot,) = taken(one)
    slot.hold(77)
    one.abandon(slot)
    assert one.stats()["held"] == 0
    assert one.take() is None
    (orphan,) = other.orphans()
    assert orphan.pid == 77
    other.give(orphan)
    taken(one)


def test_a_slot_that_only_seems_to_be_free_is_not_taken(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder took it and was killed since we looked: it is an orphan."""
    victim, one = opened(2), opened(2)
    taken(victim)
    victim.close()
    looked = iter([0, 1])
    monkeypatch.setattr(SlotFile, "find_free", lambda *_: next(looked))
    (slot,) = taken(one)
    assert slot.number == 1
    assert one.stats()["orphans"] == 1


def test_orphans_are_found_a_part_at_a_time_where_there_are_many(opened: Open) -> None:
    """A look takes less than a millisecond, and the next one goes on where it ended."""
    victim, holder, one = opened(1000), opened(1000), opened(1000)
    for _ in range(300):  # by turns: neighbours would be one lock
        taken(holder)
        taken(victim)
    victim.close()
    found = [len(one.orphans()) for _ in range(6)]
    assert found[0] < found[1] < 300
    assert found[5] == 300


def test_shrinking_asks_for_what_is_over(opened: Open) -> None:
    """Slots beyond the capacity are over, and none is taken while more are held than there are."""
    one, other = opened(6), opened(6)
    slots = taken(one, 5)
    for each in (one, other):
        each.resize(3)
    assert [one.is_over(slot) for slot in slots] == [False, False, False, True, True]
    one.give(slots[0])
    one.give(slots[3])
    assert other.take() is None  # three are held, one of them over
    one.give(slots[4])
    taken(other)
    assert one.take() is None


def test_growing_gives_room_at_once(opened: Open) -> None:
    """What was full is not, and what was over may stay."""
    one = opened(4)
    slots = taken(one, 4)
    one.resize(2)
    assert one.take() is None
    one.resize(5)
    assert not any(one.is_over(slot) for slot in slots)
    taken(one)


def test_a_slot_beyond_the_floor_is_not_kept_after_a_resize(opened: Open) -> None:
    """When more become reserved, one holds too many of them: others may ask for these."""
    one, other = opened(6, reserved=2), opened(6, reserved=2)
    slots = taken(one, 4)
    one.resize(6, reserved=4)
    other.request()
    assert [one.is_wanted(slot) for slot in slots] == [False, True, True, True]


def test_while_no_process_waits_none_releases(opened: Open) -> None:
    """One may hold everything, and one's own wanting is no reason to give."""
    one = opened(4)
    opened(4)
    slots = taken(one, 4)
    one.request()
    assert not any(one.should_give(slot) or one.is_wanted(slot) for slot in slots)


def test_who_holds_two_more_than_a_waiting_one_gives_one(opened: Open) -> None:
    """Once for each need: one process is asked once, and no other until it has a slot."""
    rich, second, poor = opened(5), opened(5), opened(5)
    slots, others = taken(rich, 3), taken(second, 2)
    assert poor.take() is None
    poor.request()
    assert rich.should_give(slots[0])
    assert not rich.should_give(slots[1])
    assert not second.should_give(others[0])
    rich.give(slots[0])
    taken(poor)
    poor.request()
    assert not rich.should_give(slots[1])  # two here, one there
    assert not second.should_give(others[1])


def test_a_reservation_that_is_not_used_ends(opened: Open, clock: Clock) -> None:
    """Its process was stopped: after a tenth of a second another one gives."""
    rich, second, poor = opened(6), opened(6), opened(6)
    (mine, *_), (other, *_) = taken(rich, 3), taken(second, 3)
    poor.request()
    assert rich.should_give(mine)
    assert not second.should_give(other)
    clock.now += RESERVE_S
    poor.request()
    assert second.should_give(other)


def test_a_free_slot_goes_to_the_waiting_one_that_holds_fewer(opened: Open, clock: Clock) -> None:
    """The others leave it to that one, until it has it, or requests it no more."""
    rich, poor = opened(4), opened(4)
    slots = taken(rich, 3)
    taken(poor)
    poor.request()
    rich.give(slots[0])
    assert rich.take() is None
    clock.now += REQUEST_S / 2
    assert rich.take() is None
    clock.now += REQUEST_S
    taken(rich)


def test_who_holds_fewer_takes_a_free_slot_although_others_wait(opened: Open) -> None:
    """No process refuses the one with the fewest, so there is no deadlock."""
    rich, poor = opened(4), opened(4)
    slots = taken(rich, 3)
    rich.request()
    poor.request()
    rich.give(slots[0])
    taken(poor, 2)


def test_idle_ones_are_for_anybody_who_waits_but_the_last_one_stays(opened: Open) -> None:
    """The one that waits may hold more: it works, while these are idle."""
    hot, calm = opened(6), opened(6)
    taken(hot, 4)
    first, last = taken(calm, 2)
    assert not calm.is_wanted(first)
    hot.request()
    assert calm.is_wanted(first)
    assert not calm.should_give(first)  # at work it stays
    calm.give(first)
    assert not calm.is_wanted(last)
    taken(hot)


def test_a_kept_slot_is_not_asked_for(opened: Open) -> None:
    """No other process could take it."""
    rich, poor = opened(6, reserved=2), opened(6, reserved=2)
    kept, *shared = taken(rich, 5)
    (control,) = taken(rich, for_control=True)
    poor.request()
    assert not rich.should_give(kept)
    assert not rich.is_wanted(kept)
    assert rich.is_wanted(shared[0])
    assert rich.should_give(shared[0])
    assert control.is_kept


def test_a_time_from_before_the_last_boot_is_no_request(opened: Open, clock: Clock) -> None:
    """In a temporary folder the file outlives the clock, which begins anew."""
    clock.now = 5e6
    before, one = opened(4), opened(4)
    slots = taken(one, 3)
    before.request()
    clock.now = 10.0
    assert not any(one.should_give(slot) or one.is_wanted(slot) for slot in slots)
    taken(one)


def test_state_can_be_read(opened: Open) -> None:
    """A person sees who holds what, and who waits."""
    one, other = opened(5, reserved=2), opened(5, reserved=2)
    (slot,) = taken(one)
    slot.hold(77)
    taken(other, 2)
    other.request()
    expected = {
        "capacity": 5, "held": 1, "held_by_all": 3, "free": 2, "orphans": 0, "waiting": 0,
        "wanting": 1,
    }  # fmt: skip
    assert one.stats() == expected
    assert other.stats() == {**expected, "held": 2, "waiting": 1}
    one.request()
    assert one.stats() == {**expected, "waiting": 1, "wanting": 2}
    assert repr(one).endswith("free=2 orphans=0 waiting=1 wanting=2>")
    assert repr(slot) == "<Slot 0 pool pid=77>"


def test_a_published_capacity_is_read_by_the_others(opened: Open) -> None:
    """What one process publishes the others read, whatever their own capacity; 0 before."""
    first = opened(4)
    assert first.published == 0
    first.publish(2**40)
    assert (opened(3).published, first.capacity) == (2**40, 4)


HOLD = """
import os, sys
from pathlib import Path
from greenline.slots import SlotTable
slot_table = SlotTable(Path(sys.argv[1]))
slot_table.resize(2)
slot = slot_table.take()
slot.hold(77)
if sys.argv[2] == "fork" and os.fork() == 0:
    acts = (
        slot_table.take, slot_table.request, lambda: slot.hold(7), lambda: slot_table.give(slot)
    )
    for act in acts:
        try:
            act()
        except RuntimeError as error:
            assert "after the fork" in str(error)
        else:
            raise AssertionError(act)
os.write(1, b"ready\\n")
sys.stdin.readline()
"""


@contextmanager
def holder(path: Path, how: str, lines: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that holds a slot; its lines say that it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how],
        cwd=CHECKOUT,
        env=environ({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            for _ in range(lines):
                assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.wait(30)


def test_the_slot_of_a_stopped_process_is_no_orphan_and_that_of_a_killed_one_is(
    opened: Open, path: Path
) -> None:
    """A stopped one goes on at any moment, and then its connection is in use."""
    one = opened(2)
    with holder(path, "alone") as process:
        process.send_signal(signal.SIGSTOP)
        assert one.orphans() == []
        assert len(taken(one)) == 1
        assert one.take() is None
        process.kill()
        process.wait(30)
        assert [orphan.pid for orphan in one.orphans()] == [77]


def test_a_forked_child_has_no_part_in_it_and_holds_nothing(opened: Open, path: Path) -> None:
    """It may not use its parent's slot table; when it outlives the parent the slot is an orphan."""
    one = opened(2)
    with holder(path, "fork", lines=2) as process:
        assert one.orphans() == []
        process.kill()
        process.wait(30)
        assert [orphan.pid for orphan in one.orphans()] == [77]


def test_it_can_be_imported_before_the_standard_library_is_patched() -> None:
    """gunicorn's arbiter does that, and its workers patch."""
    script = (
        "import greenline.slots\n"
        "from greenline.hub.patching import require_patched\n"
        "from greenline.patch import patch_all\n"
        "patch_all()\n"
        "require_patched()\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, env=environ({}), check=True)
