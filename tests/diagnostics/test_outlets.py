"""What a run says, beside its files: one outlet that fails costs itself."""

from pathlib import Path

from tests.diagnostics.run_samples import LowReward, diagnostic, evaluated
from tocsin.diagnostics.feed import Record, RunWriter
from tocsin.diagnostics.monitor import Monitor
from tocsin.diagnostics.outlets import Outlets, check_alerts
from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent


class Listing:
    """An outlet that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[BaseEvent] = []
        self.records: list[Record] = []

    def observe(self, event: BaseEvent) -> None:
        self.events.append(event)

    def record(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing is left to send."""


class Broken(Listing):
    """An outlet that fails at its first record."""

    def record(self, record: Record) -> None:
        super().record(record)
        raise RuntimeError("no")


def test_an_outlet_that_raises_is_switched_off_and_said_once_and_the_others_go_on():
    said: list[str] = []
    broken, listing = Broken(), Listing()
    outlets = Outlets([broken, listing], said.append)
    for _ in range(3):
        outlets.record(diagnostic())
    outlets.close()
    assert (len(broken.records), len(listing.records)) == (1, 3)
    assert said == ["Broken failed and is off, the run goes on: RuntimeError"]


def test_the_monitor_hands_on_events_with_their_numbers_before_the_records_they_cause(tmp_path: Path):
    order: list[tuple[str, int]] = []

    def on_record(record: Record) -> None:
        if isinstance(record, Diagnostic):
            order.append((record.code, record.event_seq))

    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(
            writer,
            LowReward(),
            attempt=1,
            tick_s=3600.0,
            on_record=on_record,
            on_event=lambda event: order.append(("event", event.seq)),
        )
        monitor.start()
        monitor.emit(evaluated(1.0))
        monitor.emit(evaluated(-1.0))
        assert monitor.close(10)
    assert [what for what, _ in order] == ["event", "event", order[-1][0]]
    assert order[-1][1] == 2


def test_alerts_that_could_not_be_delivered_are_found_before_a_run():
    configs = [
        AlertConfig(kind="slack", url_env="SLACK_URL"),
        AlertConfig(kind="webhook", url="http://127.0.0.1:1", headers={"Authorization": "HOOK_TOKEN"}),
    ]
    assert check_alerts(configs, {}) == [
        "`alerts`: the environment variable `SLACK_URL` must be set, and is not",
        "`alerts`: the environment variable `HOOK_TOKEN` must be set, and is not",
    ]
    assert check_alerts(configs, {"SLACK_URL": "http://127.0.0.1:2", "HOOK_TOKEN": "x"}) == []
