"""Rules of other packages: found, held to their declaration, and harmless when they are not what they say."""

import json
import lzma
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest

from tests.diagnostics.added import RULE, package
from tests.diagnostics.recordings.record import FOLDER
from tests.diagnostics.run_folder import RUN, Run, command, lines
from tests.diagnostics.scenario import run, started, step
from tests.diagnostics.scripted import proposal, quiet_steps, scripted
from tests.diagnostics.test_admission import NOW, SITUATION, request
from tests.schemas.examples import MANIFEST
from tocsin.diagnostics.added_rules import GROUP, Added, added, collect, engine_for
from tocsin.diagnostics.admission import admit
from tocsin.diagnostics.autotune import Autotune
from tocsin.diagnostics.cli import main
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.integrity import check_feed
from tocsin.diagnostics.modes import NAMES
from tocsin.diagnostics.recording import judge_again
from tocsin.diagnostics.rule import ADDED, Finding, Rule
from tocsin.diagnostics.runs import write_manifest
from tocsin.diagnostics.serve import operations
from tocsin.diagnostics.serve.texts import tell_rule
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.diagnosis import Coverage, Diagnostic

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs packages with rules for this test alone; see `package`."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    added.cache_clear()
    yield lambda name, points, **modules: package(tmp_path / "site", name, points, **modules)
    added.cache_clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def acme(install: Install) -> Path:
    """A package with one sound rule."""
    return install("acme-rules", {"long": "acme:Long"}, acme=RULE)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The first events of a real run, in a folder of their own."""
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    events = lzma.decompress((FOLDER / "demo.jsonl.xz").read_bytes()).splitlines(keepends=True)
    (folder / "events.jsonl").write_bytes(b"".join(events[:150]))
    return folder / "events.jsonl"


def configured(folder: Path, **diagnostics: object) -> None:
    """Give a run a manifest that says how its rules are switched and tuned."""
    section = DiagnosticsConfig.model_validate(diagnostics)
    config = MANIFEST.config.model_copy(update={"diagnostics": section})
    write_manifest(folder, MANIFEST.model_copy(update={"config": config, "versions": {"tocsin": version("tocsin")}}))


def found(records: object, code: str = "XAC001") -> list[tuple[str, str]]:
    return [(r.state, r.severity) for r in records if isinstance(r, Diagnostic) and r.code == code]  # type: ignore[attr-defined]


def test_no_code_and_no_name_of_ours_can_be_taken_for_one_of_an_added_rule():
    assert [code for code in NAMES if code.startswith(ADDED)] == []
    assert [name for name in NAMES.values() if name.startswith("x-")] == []


@pytest.mark.usefixtures("acme")
def test_an_added_rule_judges_recorded_events_like_one_of_ours(recorded, capsys):
    assert main(["replay", str(recorded), "--json"]) == 1
    records = lines(capsys)
    (first, *_) = [record for record in records if record.get("code") == "XAC001"]
    assert (first["name"], first["id"], first["severity"]) == ("x-long", "x-long/sampler#1", "warning")
    assert first["summary"] == "7.0 tokens"
    assert first["help"] == "tocsin explain XAC001"
    assert "XAC001" in records[-1]["evaluated"]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("word", ["XAC001", "x-long"])
def test_an_added_rule_is_explained_with_the_package_whose_word_its_evidence_is(word, capsys):
    assert main(["explain", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# XAC001 x-long\n\nCompletions are longer than somebody pays for.")
    assert "| package | acme-rules 1.0, whose word the evidence is |" in out
    assert main(["explain", word, "--json"]) == 0
    (described,) = lines(capsys)
    assert (described["package"], described["documentation"]) == ("acme-rules 1.0", {"What to do": "Pay more."})


@pytest.mark.usefixtures("acme")
def test_an_added_rule_is_listed_after_ours_and_answered_over_http_and_mcp(capsys):
    assert main(["rules", "--json"]) == 0
    listed = lines(capsys)
    assert [(rule["code"], rule.get("package")) for rule in listed[80:]] == [
        ("SYS015", None),
        ("XAC001", "acme-rules 1.0"),
    ]
    main(["rules"])
    assert "injected, says acme-rules 1.0" in " ".join(capsys.readouterr().out.split())
    assert operations.rules().rules[-1].code == "XAC001"
    assert operations.rule("x-long").details["package"] == "acme-rules 1.0"
    assert tell_rule("XAC001", full=False)[0].startswith("XAC001 x-long (fault): Longer than paid for")


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"disable": ["XAC001"]}, []),
        ({"disable": ["x-long"]}, []),
        ({"thresholds": {"x-long": {"fire": 8}}}, []),
        ({"thresholds": {"XAC001": {"fire": 5}}}, [("firing", "warning")]),
    ],
)
def test_an_added_rule_is_switched_and_tuned_like_one_of_ours(recorded, section, expected):
    configured(recorded.parent, **section)
    assert found(judge_again(recorded).records) == expected


def test_a_run_can_be_read_where_its_packages_are_missing(recorded):
    configured(recorded.parent, disable=["XAC001", "nan-inf"], thresholds={"x-long": {"fire": 5}})
    (last,) = [r for r in judge_again(recorded).records if isinstance(r, Coverage)][-1:]
    assert last.not_evaluated["POL015"].reason == "disabled"


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"XAC001": {"ignite": 9}}, [("firing", "warning")]),
        ({"XAC001": {"ignite": 9, "fire": 8}}, []),
        ({"x-long": {"ignite": 9}, "XAC001": {"fire": 8}}, []),
        ({"x-long": {"fire": -8}}, [("firing", "warning")]),
    ],
)
def test_settings_that_an_added_rule_takes_no_more_are_ignored_when_a_run_is_read_and_refused_when_one_begins(
    recorded, values, expected
):
    configured(recorded.parent, thresholds=values)
    assert found(judge_again(recorded).records) == expected
    with pytest.raises(ValueError, match="XAC001 must be"):
        engine_for(DiagnosticsConfig(thresholds=values), added())


def test_a_run_does_not_begin_with_settings_of_a_rule_that_is_not_installed():
    with pytest.raises(ValueError, match="`XAC001` must be a rule of a package that is installed here"):
        engine_for(DiagnosticsConfig(disable=["XAC001"]), added())


def test_findings_of_added_rules_do_not_make_a_feed_incomplete_where_their_package_is_missing(recorded):
    configured(recorded.parent)
    records = judge_again(recorded).records
    ours = {r.id: r for r in records if isinstance(r, Diagnostic)}
    left = [r for r in ours.values() if r.state == "firing"]
    theirs = next(r for r in run(Engine([scripted("XAC001", (1, 9))]), quiet_steps(2)) if isinstance(r, Diagnostic))
    assert check_feed(recorded.parent, [*left, theirs]).state == "confirmed"


@pytest.mark.usefixtures("acme")
def test_an_added_rule_can_be_silenced_and_named_to_the_auto_tuner():
    asked = request("silence", code="XAC001", until_step=60)
    assert admit(asked, SITUATION, now=NOW).effect == "records of XAC001 x-long are held back until step 60"
    Autotune(AutotuneConfig(allow={"XAC001": ["learning_rate"]}))
    with pytest.raises(ValueError, match="XAC002"):
        Autotune(AutotuneConfig(allow={"XAC002": ["learning_rate"]}))


def test_a_package_is_imported_when_rules_are_asked_for_and_at_no_other_time(install, runs, tmp_path):
    mark = tmp_path / "imported"
    site = install("acme-rules", {"long": "acme:Long"}, acme=f"open({str(mark)!r}, 'w').close()\n{RULE}")
    Run(runs).healthy().end()
    for arguments in (["status", RUN], ["feed", RUN], ["--help"], ["knobs"]):
        main(arguments)
        assert not mark.exists(), arguments
    with command("rules", env={"PYTHONPATH": str(site)}) as process:
        assert "XAC001" in process.communicate()[0]
    assert mark.exists()


BROKEN = {
    "no class": ("acme:fire", "fire = 1", "`acme:fire` must be a class derived from `tocsin.diagnostics.rule.Rule`"),
    "no such name": ("acme:Short", RULE, "`acme:Short` raised AttributeError: module 'acme' has no attribute 'Short'"),
    "no library": ("acme:Long", "import no_such_library", "`acme:Long` raised ModuleNotFoundError: No module named"),
    "exits": ("acme:Long", "raise SystemExit('bye')", "`acme:Long` raised SystemExit: bye"),
    "abstract": ("acme:Long", RULE.replace("def check", "def judge"), "raised TypeError: Can't instantiate"),
    "our code": ("acme:Long", RULE.replace("XAC001", "RWD001"), "Long: `code`: String should match pattern"),
    "our name": ("acme:Long", RULE.replace("x-long", "nan-inf"), "Long: `name`: String should match pattern"),
    "no timing": ("acme:Long", RULE.replace("    timing =", "    times ="), "Long: `timing`: is required and missing"),
    "no docstring": ("acme:Long", RULE.replace('"""C', '_ = """C'), "must have a docstring"),
    "odd proof": ("acme:Long", RULE.replace('"injected"', '"trust me"'), "Long: `proof`: Input should be 'injected'"),
    "odd trigger": ("acme:Long", RULE.replace(", BatchConsumed\n", ", dict\n"), "`trigger` must be a class of"),
    "odd default": ("acme:Long", RULE.replace("threshold(6", "threshold(-6"), "threshold `fire` of XAC001 must be a"),
    "never holds": (
        "acme:Long",
        RULE.replace("persistence=2", "persistence=0"),
        "`timing.persistence`: Input should be",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_rule_that_cannot_be_used_is_left_out_with_one_line_that_says_why(install, capsys, fault, recorded):
    point, body, reason = BROKEN[fault]
    install("acme-rules", {"long": point}, acme=body)
    assert main(["rules"]) == 0
    out, err = capsys.readouterr()
    assert "XAC001" not in out
    assert err.startswith("rule acme-rules:long is left out: ")
    assert reason in err
    assert err.count("\n") == 1
    main(["replay", str(recorded), "--json"])
    *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["health"] == "degraded"
    assert last["not_evaluated"]["acme-rules:long"] == {
        "reason": "error",
        "detail": "the rule cannot be loaded; `tocsin rules` says why",
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("class Panic(BaseException):\n    pass\nraise Panic('bye')", "`acme:Long` raised Panic: bye"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute", "`acme:Long` raised Mute: (no message)"),
        ("raise ImportError('\\x1b[31m\\nred')", "`acme:Long` raised ImportError: ?[31m red"),
        ("raise ImportError('a' * 999)", f"`acme:Long` raised ImportError: {'a' * 265}..."),
    ],
)
def test_whatever_a_package_raises_when_it_is_imported_becomes_one_short_line(install, body, reason):
    install("acme-rules", {"long": "acme:Long"}, acme=body)
    assert added().refused == {"acme-rules:long": reason}


def test_of_two_rules_with_one_code_or_name_the_second_is_left_out(install):
    install("acme-rules", {"long": "acme:Long"}, acme=RULE)
    install("zeta-rules", {"long": "zeta:Long"}, zeta=RULE)
    assert [rule.code for rule in added().rules] == ["XAC001"]
    assert added().refused == {"zeta-rules:long": "`XAC001` is taken by `acme:Long` of acme-rules 1.0"}


def test_without_a_package_there_is_nothing_to_say():
    assert collect([]) == Added()
    assert collect([EntryPoint("long", "nowhere:Long", GROUP)]).refused.keys() == {"unknown:long"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (RULE.replace("mean = features", "mean = 1 / 0 or features"), "ZeroDivisionError"),
        (RULE.replace('severity="warning"', 'severity="fatal"'), "ValidationError"),
        (RULE.replace("return Finding(", 'return "bad" or Finding('), "TypeError"),
        (RULE.replace("proposals=()", 'proposals=(look("ask", "t" * 121),)'), "ValidationError"),
        (RULE.replace("proposals=()", 'proposals=("ask",)'), "TypeError"),
    ],
)
def test_a_rule_that_raises_or_answers_nonsense_is_named_in_coverage_and_the_others_go_on(
    install, recorded, body, error
):
    install("acme-rules", {"long": "acme:Long"}, acme=body)
    records = judge_again(recorded).records
    (last,) = [r for r in records if isinstance(r, Coverage)][-1:]
    assert last.not_evaluated["XAC001"].detail == f"the rule raised `{error}`"
    assert last.health == "degraded"
    assert "RWD001" in last.evaluated
    assert found(records) == []


def with_action(**changes: object) -> Rule:
    """An added rule that proposes one action."""
    usual = proposal()
    verify = usual.verify
    assert verify is not None
    patch = usual.patches[0].model_copy(update={"path": changes.pop("path", "learning_rate")})
    metric = verify.model_copy(update={"metric": changes.pop("metric", verify.metric)})
    fields = {**vars(usual), "patches": (patch,), "verify": metric, **changes}
    return scripted("XAC001", (3, 9), proposals=(type(usual)(**fields),))


def test_no_action_of_an_added_rule_is_automatic():
    records = run(Engine([with_action(applicability="automatic")]), [[started()], *quiet_steps(5)])
    (diagnostic,) = [record for record in records if isinstance(record, Diagnostic)]
    assert [action.applicability for action in diagnostic.actions] == ["review"]


@pytest.mark.parametrize("change", [{"path": "temprature"}, {"metric": "batch_consumed.lenth"}, {"risk": "none"}])
def test_an_action_that_names_what_does_not_exist_is_never_offered(change):
    records = run(Engine([with_action(**change)]), [[started()], *quiet_steps(5)])
    assert found(records) == []
    (last,) = [record for record in records if isinstance(record, Coverage)][-1:]
    assert last.not_evaluated["XAC001"].reason == "error"


def test_only_a_rule_that_says_its_fault_was_planted_goes_above_info(install, recorded):
    install("acme-rules", {"long": "acme:Long"}, acme=RULE.replace('"injected"', '"scenario"'))
    assert found(judge_again(recorded).records) == [("firing", "info")]


def test_added_rules_change_nothing_about_what_ours_say():
    ours = [scripted(f"SYS{n:03}", (10, 40)) for n in range(100, 112)]
    theirs = [scripted(f"XAC{n:03}", (5 + n, 60)) for n in range(20)]
    told = [
        [record.model_dump() for record in run(Engine(rules), quiet_steps(150)) if isinstance(record, Diagnostic)]
        for rules in (ours, [*theirs, *ours])
    ]
    assert told[0] == [record for record in told[1] if not record["code"].startswith(ADDED)]


def test_a_rule_sees_the_event_that_it_is_evaluated_at():
    seen: list[object] = []

    class Looks(type(scripted("XAC001"))):  # type: ignore[misc]
        def check(self, features, *, is_open) -> Finding | None:
            seen.append(features.event)

    events = [[step()], [step()]]
    run(Engine([Looks()]), events)
    assert [event.type for event in seen] == ["step_completed", "step_completed"]  # type: ignore[attr-defined]
