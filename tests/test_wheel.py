import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "diagnostics", "trainer")

TORCH_FREE = (
    "tocsin.schemas.export",
    "tocsin.diagnostics",
    "tocsin.diagnostics.cli",
    "tocsin.diagnostics.rules",
    "tocsin.trainer",
    "tocsin.trainer.data",
)
"""What imports where only `pip install tocsin` was run."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the repository, without its environment variables for Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=clean)


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build left in the repository must not get into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    done(run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", cwd=source))
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True)
    pip = (folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    done(run(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder))
    return folder


def tocsin(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environment / "venv" / "bin" / "tocsin", *arguments, cwd=environment)


def test_the_wheel_holds_every_module_and_every_schema(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in PACKAGES:
        expected = {f"tocsin/{path.relative_to(ROOT)}" for path in (ROOT / package).rglob("*.py")}
        assert expected <= names
        assert f"tocsin/{package}/py.typed" in names
    assert "tocsin/diagnostics/SKILL.md" in names
    assert {f"tocsin/schemas/json/{path.name}" for path in (ROOT / "schemas" / "json").iterdir()} <= names


def test_the_wheel_holds_nothing_but_the_package_and_its_licence(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"tocsin", "tocsin-0.1.0.dist-info"}
    assert "tocsin-0.1.0.dist-info/licenses/LICENSE" in names
    assert "tocsin/__init__.py" not in names, "`tocsin` is a namespace package"


def test_the_installed_command_says_its_version(environment: Path):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert done(tocsin(environment, "--version")) == f"tocsin {version}\n"


def test_the_installed_command_lists_reading_and_training_commands(environment: Path):
    text = done(tocsin(environment, "--help"))
    for command in ("status", "feed", "get", "explain", "rules", "snapshot", "replay", "train", "check", "demo"):
        assert f"\n  {command}" in text


def test_the_installed_command_prints_the_skill_for_agents(environment: Path):
    assert done(tocsin(environment, "skill")) == (ROOT / "diagnostics" / "SKILL.md").read_text()


def test_the_installed_rules_are_printed_as_json_lines(environment: Path):
    text = done(tocsin(environment, "rules", "--json"))
    for code in ("RWD001", "POL003", "POL015", "OFF001", "SYS001"):
        assert text.count(f'"{code}"') >= 1


@pytest.mark.parametrize(
    "arguments", [("train", "run.toml"), ("check", "run.toml"), ("demo",), ("vllm", "serve", "model")]
)
def test_training_without_its_libraries_says_what_to_install(environment: Path, arguments: tuple[str, ...]):
    result = tocsin(environment, *arguments)
    assert result.returncode == 2
    assert "pip install 'tocsin[train]'" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["serve", "mcp"])
def test_serving_without_its_libraries_says_what_to_install(environment: Path, name: str):
    result = tocsin(environment, name)
    assert (result.returncode, result.stdout) == (2, "")
    assert "pip install 'tocsin[serve]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_everything_but_training_imports_without_torch(environment: Path):
    script = "import importlib, sys\n" + "".join(f"importlib.import_module({name!r})\n" for name in TORCH_FREE)
    python = environment / "venv" / "bin" / "python"
    done(run(python, "-c", script, cwd=environment))
    assert run(python, "-c", "import torch", cwd=environment).returncode == 1


def test_the_installed_schemas_are_those_of_the_installed_models(environment: Path):
    done(run(environment / "venv" / "bin" / "python", "-m", "tocsin.schemas", "--check", cwd=environment))
