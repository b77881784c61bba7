"""The shape of the code: who may import whom, how long things are, and what must not be there at all."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import reduce
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tocsin.diagnostics.rules import ALL_RULES

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "diagnostics", "trainer")
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60

FORBIDDEN_IMPORTS = {
    "schemas": {"tocsin.diagnostics", "tocsin.trainer", "torch", "transformers", "vllm"},
    "diagnostics": {"tocsin.trainer", "torch", "transformers", "vllm"},
    "trainer": {"vllm"},
}
"""By package."""

IN_SERVER = {"trainer/vllm/plugin.py", "trainer/vllm/nccl.py"}
"""Files that a vLLM server or the learner imports, which therefore may import torch, and vllm."""

TORCH_FREE = ("check", "commands", "data", "rollout*", "reward*", "verifiers", "vllm/*")
"""Modules of the trainer that the command line, the rollout process or a reward worker imports: torch takes seconds."""

SHADOWING = (sys.stdlib_module_names - {"pipes"}) | {"utils", "helpers", "common", "misc"}
"""Names that no module may have: those of the standard library, and those that say nothing. `pipes` left it in 3.13."""

PICKLING = {"trainer/reward_workers.py"}
"""Files that may pickle: between processes of one run, over a socket pair that nobody else can open."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SHIPPED = python_files(*PACKAGES)
ALL_FILES = python_files(*PACKAGES, "tests", "agents_examples")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports at any depth, with the names it takes from it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} must import by absolute name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Classes, functions and methods that others may use, with their qualified names."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}{child.name}.")


def module_of(path: Path) -> str:
    return ".".join(("tocsin", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def overrides(path: Path, qualified_name: str) -> bool:
    """Whether this is a method that a base class declares, and therefore says what it is for."""
    owner, _, method = qualified_name.rpartition(".")
    if not owner:
        return False
    found = reduce(getattr, owner.split("."), importlib.import_module(module_of(path)))
    return any(method in vars(base) for base in found.__mro__[1:])


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_import_law_allows(package: str):
    broken = [
        f"{name_of(path)} imports {imported}"
        for path in python_files(package)
        for imported in imports(path)
        for forbidden in FORBIDDEN_IMPORTS[package] - ({"vllm"} if name_of(path) in IN_SERVER else set())
        if imported == forbidden or imported.startswith(f"{forbidden}.")
    ]
    assert not broken, "\n".join(broken)


def test_our_packages_are_imported_by_their_full_name():
    folders = set(PACKAGES)
    broken = [f"{name_of(p)}: {name}" for p in ALL_FILES for name in imports(p) if name.split(".")[0] in folders]
    assert not broken, "\n".join(broken)


def test_modules_outside_the_learner_start_without_torch_and_transformers():
    found = [path for pattern in TORCH_FREE for path in sorted((ROOT / "trainer").glob(f"{pattern}.py"))]
    names = [module_of(path) for path in found if name_of(path) not in IN_SERVER]
    assert {"tocsin.trainer.data", "tocsin.trainer.vllm"} <= set(names)
    script = (
        "import importlib, sys\n"
        f"for name in {[*names, 'tocsin.diagnostics', 'tocsin.schemas.export']!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {sorted(heavy)}'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_and_functions_stay_short_enough_to_read_at_once():
    too_long = [
        f"{name_of(path)}: {lines} lines"
        for path in ALL_FILES
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    too_long += [
        f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"
        for path in ALL_FILES
        for node in functions(path)
        if node.end_lineno is not None and (length := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not too_long, "\n".join(too_long)


def test_the_package_list_of_the_build_is_every_folder_with_python_in_it():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in SHIPPED}
    assert sorted(tool["packages"]) == sorted(".".join(("tocsin", *folder.parts)) for folder in folders)
    assert all((ROOT / folder / "__init__.py").exists() for folder in folders)
    assert tool["package-dir"] == {f"tocsin.{package}": package for package in PACKAGES}


def test_every_rule_file_is_in_the_table_of_rules():
    files = {path.stem for path in python_files("diagnostics/rules") if path.stem != "__init__"}
    assert files == {type(rule).__module__.rpartition(".")[2] for rule in ALL_RULES}


def test_every_dependency_is_pinned_and_nothing_else_is():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {line.partition("==")[0] for line in lines}
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line)] == []
    # A CUDA build of torch pins the NVIDIA wheels that it brings.
    cuda = ("nvidia-cu", "nvidia-n", "cuda-", "triton")
    needed = {
        name
        for name in dependencies("tocsin", frozenset({"train", "bench", "serve", "dev"}), set())
        if not name.startswith(cuda)
    }
    assert pinned == needed


def dependencies(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Distributions that `name` with `extras` needs on this platform, at any depth."""
    found: set[str] = set()
    for text in metadata.distribution(name).requires or []:
        needed = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if needed.marker is not None and not any(needed.marker.evaluate(chosen) for chosen in environments):
            continue
        key = (canonicalize_name(needed.name), frozenset(needed.extras))
        found.add(key[0])
        if key not in seen:
            seen.add(key)
            found |= dependencies(*key, seen)
    return found


def test_every_module_class_and_function_that_others_use_says_what_it_is():
    silent = [name_of(path) for path in SHIPPED if not ast.get_docstring(tree(path))]
    silent += [
        f"{name_of(path)}:{node.lineno} {name}"
        for path in SHIPPED
        for name, node in public(tree(path))
        if not ast.get_docstring(node) and not overrides(path, name)
    ]
    assert not silent, "\n".join(silent)


def test_no_module_hides_one_of_the_standard_library_or_has_a_name_that_says_nothing():
    assert [name_of(path) for path in SHIPPED if path.stem in SHADOWING] == []


def test_a_broad_except_says_what_it_protects_and_a_bare_one_does_not_exist():
    broken = []
    for path in SHIPPED:
        lines = path.read_text().splitlines()
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type else "everything"
            explained = any("#" in line for line in lines[node.lineno - 2 : node.lineno + 1])
            goes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            broad = re.search(r"\b(Base)?Exception\b", caught) is not None and not goes_on
            if caught == "everything" or (broad and not explained):
                broken.append(f"{name_of(path)}:{node.lineno} catches {caught}")
    assert not broken, "\n".join(broken)


def test_nothing_runs_code_out_of_data_or_through_a_shell():
    broken = [
        f"{name_of(path)} imports {name}"
        for path in SHIPPED
        if name_of(path) not in PICKLING
        for name in imports(path)
        if name.split(".")[0] in {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
    ]
    for path in SHIPPED:
        for call in calls(path):
            named = ast.unparse(call.func)
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            unsafe = named in {"eval", "exec", "yaml.load", "os.system", "os.popen"}
            unsafe = unsafe or given.get("shell", "False") != "False"
            unsafe = unsafe or (named == "torch.load" and given.get("weights_only") != "True")
            if unsafe:
                broken.append(f"{name_of(path)}:{call.lineno} calls {named}")
    assert not broken, "\n".join(broken)
