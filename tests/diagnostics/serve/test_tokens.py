"""Who may change a run over the network."""

import os
from pathlib import Path

import pytest

from tocsin.diagnostics.serve.tokens import Tokens, bearer, new_token, parse_tokens, read_tokens

ONE, TWO = "token-number-one-0001", "token-number-two-0002"


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_each_token_stands_for_its_actor(tmp_path: Path):
    tokens = read_tokens(token_file(tmp_path, f"# who\nagent:nightwatch: {ONE}\n\nperson:ada {TWO}\n"))
    assert (tokens.actor(ONE), tokens.actor(TWO)) == ("agent:nightwatch", "person:ada")
    for wrong in (None, "", ONE[:-1], ONE + "x", ONE.upper(), "agent:nightwatch"):
        assert tokens.actor(wrong) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a line `actor: token`, got none"),
        (f"{ONE}\n", "line 1 must be `actor: token`, got 1 words"),
        (f"\nagent:a {ONE} b\n", "line 2 must be `actor: token`, got 3 words"),
        (f"root: {ONE}\n", "line 1 must begin with an actor"),
        (f"autotune: {ONE}\n", "line 1 must begin with an actor"),
        (f"{ONE} agent:a\n", "line 1 must begin with an actor"),
        ("agent:a: hunter2\n", "must have at least 16 characters, got 7"),
        (f"agent:a: {ONE}\nagent:b: {ONE}\n", "`agent:b` has that of another line"),
    ],
)
def test_a_token_file_that_is_none_is_refused_without_quoting_it(text: str, message: str):
    with pytest.raises(ValueError, match=message) as refused:
        parse_tokens(text, "tokens")
    assert ONE not in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, mode: int):
    with pytest.raises(ValueError, match=rf"readable by its owner alone, got mode {mode:03o}; chmod 600"):
        read_tokens(token_file(tmp_path, f"agent:a: {ONE}\n", mode))


def test_a_token_appears_in_no_representation():
    tokens = Tokens([("agent:a", ONE)])
    assert ONE not in f"{tokens!r} {vars(tokens)!r}"


def test_a_new_token_is_another_one_each_time():
    tokens, actor, token = new_token()
    assert tokens.actor(token) == actor
    assert len(token) >= 32
    assert new_token()[2] != token


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer   abc", "abc"),
        ("Basic abc", None),
        ("Bearer a b", None),
        ("Bearer", None),
        (None, None),
        ("Bearer é", None),
    ],
)
def test_the_token_of_a_header(header: str | None, token: str | None):
    assert bearer(header) == token
