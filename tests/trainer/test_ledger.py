"""The ledger balances after every message, whatever their order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.schemas.events import Ledger
from tocsin.trainer.ledger import GroupLedger


def balance(ledger: Ledger) -> int:
    """Zero when nothing is missing and nothing is counted twice."""
    fates = ledger.in_flight + ledger.queued + ledger.consumed
    return ledger.launched - fates - sum(ledger.dropped.values()) - sum(ledger.failed.values())


def test_each_message_moves_a_group_from_one_fate_to_the_next():
    ledger = GroupLedger()
    for index in range(4):
        ledger.launch(index, target_step=index // 2)
    ledger.arrive(0)
    ledger.arrive(1)
    ledger.consume(1)
    ledger.fail(2, "reward_timeout")
    assert ledger.in_flight == {3: 1}
    assert ledger.queued == {0: 0}
    assert ledger.snapshot() == Ledger(
        launched=4, in_flight=1, queued=1, consumed=1, dropped={}, failed={"reward_timeout": 1}
    )


def test_ending_gives_up_what_is_open_with_its_cause():
    ledger = GroupLedger()
    ledger.launch(0, 0)
    ledger.launch(1, 0)
    ledger.arrive(0)
    ledger.drop_open("run_ended")
    assert ledger.snapshot() == Ledger(
        launched=2, in_flight=0, queued=0, consumed=0, dropped={"run_ended": 2}, failed={}
    )


def test_a_resumed_ledger_counts_what_was_open_as_dropped_and_launches_it_again():
    saved = Ledger(launched=9, in_flight=2, queued=1, consumed=4, dropped={"resumed": 1}, failed={"worker_died": 1})
    ledger = GroupLedger.resumed(saved)
    assert ledger.snapshot() == Ledger(
        launched=9, in_flight=0, queued=0, consumed=4, dropped={"resumed": 4}, failed={"worker_died": 1}
    )
    ledger.launch(5, 3)
    assert ledger.snapshot().launched == 10
    assert balance(ledger.snapshot()) == 0


def test_resuming_without_anything_open_names_no_cause():
    saved = Ledger(launched=3, in_flight=0, queued=0, consumed=3, dropped={}, failed={})
    assert GroupLedger.resumed(saved).snapshot() == saved


@pytest.mark.parametrize("wrong", ["arrive", "consume", "fail"])
def test_news_of_a_group_that_was_never_launched_changes_nothing(wrong: str):
    ledger = GroupLedger()
    ledger.launch(0, 0)
    before = ledger.snapshot()
    with pytest.raises(KeyError):
        ledger.fail(7, "worker_died") if wrong == "fail" else getattr(ledger, wrong)(7)
    assert ledger.snapshot() == before


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_the_balance_holds_after_every_message(data: st.DataObject):
    ledger, index = GroupLedger(), 0
    for _ in range(data.draw(st.integers(1, 40))):
        possible = ["launch", "drop", "resume"]
        possible += ["arrive", "arrive", "fail"] * bool(ledger.in_flight) + ["consume"] * bool(ledger.queued)
        match data.draw(st.sampled_from(possible)):
            case "launch":
                ledger.launch(index, target_step=index // 3)
                index += 1
            case "arrive":
                ledger.arrive(data.draw(st.sampled_from(sorted(ledger.in_flight))))
            case "fail":
                cause = data.draw(st.sampled_from(["reward_error", "worker_died"]))
                ledger.fail(data.draw(st.sampled_from(sorted(ledger.in_flight))), cause)
            case "consume":
                ledger.consume(data.draw(st.sampled_from(sorted(ledger.queued))))
            case "drop":
                ledger.drop_open("run_ended")
            case "resume":
                ledger = GroupLedger.resumed(ledger.snapshot())
        assert balance(ledger.snapshot()) == 0
