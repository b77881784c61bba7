"""The catalogue: nothing left out, and every page complete."""

import json
import pkgutil

import pytest

from tocsin.diagnostics import rules
from tocsin.diagnostics.catalogue import (
    ENTRIES,
    PAGE,
    RULES,
    describe,
    document,
    find_entry,
    main,
    render_docs,
    sections,
)
from tocsin.diagnostics.modes import GAPS, WORDS, Gap
from tocsin.diagnostics.rule import HEADINGS, Rule
from tocsin.diagnostics.rules import ALL_RULES


def test_every_rule_file_is_in_the_catalogue() -> None:
    files = {module.name for module in pkgutil.iter_modules(rules.__path__)}
    assert files == {type(rule).__module__.rsplit(".", 1)[1] for rule in ALL_RULES}


def test_codes_and_names_are_used_once_and_files_are_named_after_their_rule() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert type(rule).__module__.rsplit(".", 1)[1] == rule.name.replace("-", "_")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_all_headings_in_order_with_text(rule: Rule) -> None:
    parts = sections(rule)
    assert list(parts) == ["", *HEADINGS]
    assert all(len(text) > 40 for text in parts.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_document_names_every_threshold_and_every_field_read(rule: Rule) -> None:
    text = document(rule)
    assert text.startswith(f"# {rule.code} {rule.name}\n")
    for name in (*rule.thresholds(), *rule.reads):
        assert f"`{name}`" in text


def test_describe_is_json_and_holds_the_values_in_force() -> None:
    data = json.loads(json.dumps(describe(find_entry("staleness-high")), allow_nan=False))
    assert data["thresholds"]["fire"] == {
        "value": 4.0,
        "default": 4,
        "min": 0.0,
        "max": None,
        "unit": "optimizer steps",
        "text": "95th percentile above which a batch counts",
    }
    assert (data["code"], data["evidence"], data["may_warn"]) == ("OFF001", "scenario", False)


@pytest.mark.parametrize("name", ["RWD001", "rwd001", "zero-std-groups", " Zero-Std-Groups "])
def test_finds_a_rule_by_code_or_name_in_any_case(name: str) -> None:
    assert find_entry(name).code == "RWD001"


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("nan", "`nan-inf`"), ("zero-std-group", "`zero-std-groups`"), ("GEN03", "`GEN003`"), ("length-grow", "length")],
)
def test_an_unknown_code_gets_close_matches_and_where_to_look(wanted: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"got `{wanted}`. Did you mean .*{meant}.*`tocsin rules`"):
        find_entry(wanted)


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.code)
def test_a_mode_without_a_rule_is_explained_by_its_reason(gap: Gap) -> None:
    text = document(gap)
    assert text.startswith(f"# {gap.code} {gap.name}\n\n{gap.title}.\n\n## Not evaluated\n")
    assert f"{WORDS[gap.why].capitalize()}. {gap.detail}" in text
    data = json.loads(json.dumps(describe(gap)))
    assert data["not_evaluated"] == {"reason": gap.why, "detail": gap.detail}
    assert "thresholds" not in data


def test_the_page_has_every_mode_in_the_order_of_the_codes() -> None:
    page = render_docs()
    for entry in ENTRIES:
        assert f"| {entry.code} | {entry.name} |" in page
    families = ["RWD", "POL", "OFF", "GEN", "SYS"]
    codes = [entry.code for entry in ENTRIES]
    assert codes == sorted(codes, key=lambda code: (families.index(code[:3]), code))


def test_the_committed_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_docs()
    assert main(["--check"]) == 0


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--chekc"]) == 2
    assert "arguments must be none or `--check`, got --chekc" in capsys.readouterr().err
