import inspect
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import rl_doctor.live
import rlwatch.detectors
from rl_doctor.aliases import resolve, resolve_reward_component
from rl_doctor.detectors import available
from rl_doctor.ingest import run_from_records

from tests.diagnostics.scenario import batch, numbered, step
from tests.trainer.bench.faulty_runs import FAULTS, ONSET, run
from tocsin.diagnostics.modes import NAMES
from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.baselines import rldoctor
from tocsin.trainer.bench.baselines import rlwatch as rlwatch_baseline
from tocsin.trainer.bench.baselines.base import Alarm, Detector
from tocsin.trainer.bench.baselines.limit_table import LIMITS
from tocsin.trainer.bench.baselines.limits import Gauge, Limit
from tocsin.trainer.bench.baselines.readings import logged, readings
from tocsin.trainer.bench.baselines.rival import NotInstalled
from tocsin.trainer.bench.baselines.rldoctor import RlDoctor
from tocsin.trainer.bench.baselines.rlwatch import RlWatch
from tocsin.trainer.bench.baselines.thresholds import Thresholds

DETECTORS: tuple[Detector, ...] = (Thresholds(), RlDoctor(), RlWatch())


def first(alarms: list[Alarm]) -> dict[str, int]:
    steps: dict[str, int] = {}
    for alarm in alarms:
        steps.setdefault(alarm.name, alarm.step)
    return steps


def test_a_run_that_learns_slowly_crosses_no_threshold():
    assert Thresholds().alarms(run()) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_threshold_is_crossed_soon_after_the_onset_and_nothing_is_before(name: str):
    alarms = Thresholds().alarms(run(FAULTS[name], steps=ONSET + 20))
    assert min(alarm.step for alarm in alarms) >= ONSET
    assert first(alarms)[name] <= ONSET + 15


def test_every_threshold_has_a_fault_that_it_sees_or_a_test_of_its_own():
    assert {limit.name for limit in LIMITS} == {*FAULTS, "reward-plateau"}


def flat(rewards: list[float], *, steps: int = 130) -> list[BaseEvent]:
    return numbered([[batch([rewards] * 16), step()] for _ in range(steps)])


def test_a_reward_that_stands_still_is_an_alarm_after_the_patience():
    assert first(Thresholds().alarms(flat([0.0, 1.0] * 4))) == {"reward-plateau": 111}


def test_a_reward_that_stands_still_at_the_highest_possible_one_is_no_plateau():
    assert "reward-plateau" not in first(Thresholds().alarms(flat([1.0] * 8)))


def test_a_threshold_speaks_once_per_run():
    alarms = Thresholds().alarms(run(FAULTS["truncated"]))
    assert [alarm.name for alarm in alarms].count("truncated") == 1


def test_a_limit_relative_to_the_start_is_not_judged_before_there_is_one():
    gauge = Gauge(Limit("x", "x", "above", 2.0, frozenset(), "", scale="start", mean_of=1))
    assert [gauge.crossed(value) for value in [1.0] * 10 + [9.0] * 5] == [False] * 15
    assert [gauge.crossed(1.0) for _ in range(5)] == [False] * 5
    assert gauge.crossed(2.1)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_a_detector_says_of_a_run_that_goes_on_what_it_said_before(detector: Detector):
    events = run(FAULTS["entropy-low"])
    whole = detector.alarms(events)
    assert whole
    assert all(before.step <= after.step for before, after in pairwise(whole))
    for cut in (40, ONSET + 4, ONSET + 30):
        prefix = [event for event in events if event.step <= cut]
        assert detector.alarms(prefix) == [alarm for alarm in whole if alarm.step <= cut]


@pytest.mark.parametrize(
    ("fault", "name", "severity"),
    [
        ("no-signal", "advantage_collapse", "critical"),
        ("truncated", "length_pathology", "critical"),
        ("clipped-tokens", "clip_saturation", "warning"),
        ("not-finite-gradient", "gradient_pathology", "critical"),
        ("entropy-low", "entropy_collapse", "critical"),
    ],
)
def test_rl_doctor_names_a_fault_after_its_onset(fault: str, name: str, severity: str):
    found = [alarm for alarm in RlDoctor().alarms(run(FAULTS[fault])) if alarm.name == name]
    assert found
    assert found[0].step > ONSET
    assert severity in {alarm.severity for alarm in found}


def test_rl_doctor_finds_nothing_in_a_run_that_learns_slowly():
    assert RlDoctor().alarms(run()) == []


def test_rl_doctor_looks_less_often_when_told_so():
    events = run(FAULTS["truncated"])
    often, seldom = (first(RlDoctor(check_every=n).alarms(events))["length_pathology"] for n in (5, 25))
    assert often % 5 == 0
    assert seldom % 25 == 0
    assert often <= seldom


def test_rl_doctor_that_breaks_down_is_not_silent(monkeypatch: pytest.MonkeyPatch):
    def broken(*_args: object, **_options: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr(rl_doctor.live, "diagnose", broken)
    with pytest.raises(RuntimeError, match="rl-doctor failed"):
        RlDoctor().alarms(run())


def test_rl_doctor_knows_every_metric_that_it_is_given_for_what_it_is():
    records = [logged(reading) for reading in readings(run(FAULTS["held-out-gap"]))]
    understood = {name: resolve_reward_component(name) or resolve(name) for record in records for name in record}
    assert understood == {
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "reward_min": "reward_min",
        "reward_max": "reward_max",
        "advantages_std": "advantage_std",
        "frac_reward_zero_std": "zero_var_group_frac",
        "completions/mean_length": "response_len_mean",
        "completions/max_length": "response_len_max",
        "completions/clipped_ratio": "response_len_clip_ratio",
        "clip_ratio/low_mean": "pg_clipfrac_low",
        "clip_ratio/high_mean": "pg_clipfrac_high",
        "clip_ratio/region_mean": "pg_clipfrac",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "loss": "policy_loss",
        "learning_rate": "lr",
        "actor/ppo_kl": "kl",
        "eval_reward": "eval_score",
        "step_time": "time_per_step",
        "perf/throughput": "throughput",
        "sampling/sampling_logp_difference/mean": None,
    }
    assert run_from_records([record for record in records if record]).unmapped_keys == [
        "sampling/sampling_logp_difference/mean"
    ]


@pytest.mark.parametrize(
    ("fault", "name", "last"),
    [
        ("not-finite-loss", "loss_nan", ONSET + 1),
        ("gradient-spike", "gradient_norm_spike", ONSET + 1),
        ("policy-kl", "kl_explosion", ONSET + 1),
        ("reward-variance", "reward_hacking", ONSET + 1),
        ("entropy-low", "entropy_collapse", ONSET + 25),
    ],
)
def test_rlwatch_names_a_fault_at_once(fault: str, name: str, last: int):
    alarms = [alarm for alarm in RlWatch().alarms(run(FAULTS[fault])) if alarm.name == name and alarm.step > ONSET]
    assert alarms
    assert alarms[0].step <= last


def test_rlwatch_leaves_nothing_behind_and_reads_no_configuration_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    events = run(FAULTS["not-finite-loss"])
    expected = RlWatch().alarms(events)
    config = tmp_path / "rlwatch.yaml"
    config.write_text("loss_nan: {enabled: false}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLWATCH_DISCORD_WEBHOOK_URL", "http://127.0.0.1:9/")
    monkeypatch.setattr("threading.Thread.start", None)  # what it sends, it sends in threads
    assert RlWatch().alarms(events) == expected
    assert list(tmp_path.iterdir()) == [config]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_rl_doctor_prints_and_logs_nothing(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture):
    assert RlDoctor().alarms(run(FAULTS["truncated"]))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("detector", "modules", "distribution"),
    [(RlDoctor(), ("rl_doctor", "rl_doctor.live"), "rldoctor"), (RlWatch(), ("rlwatch",), "rlwatch")],
)
def test_a_rival_that_is_not_installed_says_what_to_install(
    detector: Detector, modules: tuple[str, ...], distribution: str, monkeypatch: pytest.MonkeyPatch
):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotInstalled, match=rf"`{distribution}` must be installed.*pip install 'tocsin\[bench\]'"):
        detector.alarms([])


def test_every_name_that_a_rival_may_say_has_codes_and_no_other_has():
    said = set(re.findall(r'detector="(\w+)"', inspect.getsource(rlwatch.detectors)))
    assert said == set(rlwatch_baseline.CODES)
    assert set(available()) == set(rldoctor.CODES)


def test_every_code_is_one_of_the_registry_and_every_number_has_a_source():
    codes = [limit.codes for limit in LIMITS]
    codes += [*rldoctor.CODES.values(), *rlwatch_baseline.CODES.values()]
    assert frozenset().union(*codes) <= set(NAMES)
    assert all(codes)
    assert all(limit.source for limit in LIMITS)
