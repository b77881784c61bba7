"""`tocsin serve` and `tocsin mcp` as a person starts them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.diagnostics.run_folder import RUN, Run, command
from tests.diagnostics.serve.servers import TOKEN, problem, with_token
from tocsin.diagnostics.cli import main


def first_lines(process: "subprocess.Popen[str]", num: int) -> list[str]:
    assert process.stderr is not None
    return [process.stderr.readline() for _ in range(num)]


def url(line: str) -> str:
    found = re.search(r"at (http://\S+) \(MCP at \1/mcp\)$", line.strip())
    assert found, line
    return found[1]


def test_a_token_is_made_and_printed_once_and_ctrl_c_ends_the_server(runs: Path):
    Run(runs).firing().end()
    with command("serve", "--port", "0") as process:
        said, header, where = first_lines(process, 3)
        token = header.removeprefix("  Authorization: Bearer ").strip()
        assert said.startswith("tocsin: to change a run as person")
        assert len(token) >= 32
        assert "serving 1 run of runs at http://127.0.0.1:" in where
        with httpx.Client(base_url=url(where), timeout=60) as client:
            assert problem(client.post(f"/runs/{RUN}/pause", json={}, headers=with_token(token))) == (409, "run-over")
            assert problem(client.post(f"/runs/{RUN}/pause", json={}, headers=with_token())) == (401, "no-token")
            with client.stream("GET", "/runs/nope/stream") as response:
                assert response.status_code == 404
            process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_tokens_of_a_file_are_never_printed(runs: Path, tmp_path: Path):
    Run(runs).firing().end()
    path = tmp_path / "tokens"
    path.write_text(f"agent:nightwatch: {TOKEN}\n")
    path.chmod(0o600)
    with command("serve", str(runs), "--port", "0", "--token-file", str(path)) as process:
        (where,) = first_lines(process, 1)
        answer = httpx.post(f"{url(where)}/runs/{RUN}/pause", json={}, headers=with_token(), timeout=60)
        assert problem(answer) == (409, "run-over")
        process.terminate()
        out, err = process.communicate()
    assert TOKEN not in where + out + err
    assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others, so it needs --token-file"),
        (["serve", "--token-file", "nowhere"], "nowhere"),
        (["serve", "--host", "192.0.2.1", "--token-file", "tokens"], "cannot listen at 192.0.2.1 port 7878"),
        (["mcp", "--as", "root"], "--as must be agent:NAME or person:NAME, got `root`"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(runs: Path, capsys: Any, arguments: list[str], message: str):
    Path("tokens").write_text(f"agent:a: {TOKEN}\n")
    Path("tokens").chmod(0o600)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("tocsin: ")
    assert message in err


def test_tokens_may_come_from_the_environment(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOCSIN_TOKENS", "agent:a: short")
    assert main(["serve"]) == 2
    assert "TOCSIN_TOKENS: the token of `agent:a` must have at least 16 characters" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["serve", "mcp"])
def test_without_its_libraries_a_command_says_what_to_install(name: str):
    code = f"import sys; sys.modules['mcp'] = None; from tocsin.diagnostics.cli import main; sys.exit(main(['{name}']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"tocsin: {name}: needs mcp, which this environment lacks; install with: pip install 'tocsin[serve]'\n"
    )


def test_reading_commands_import_nothing_of_a_server(runs: Path):
    Run(runs).healthy().end()
    code = """
import sys
from tocsin.diagnostics.cli import main
codes = [main(["--help"]), main(["status", "latest"])]
loaded = [name for name in sys.modules if name.split(".")[0] in ("mcp", "starlette", "uvicorn", "sse_starlette")]
print(codes, loaded, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[0, 0] []"
