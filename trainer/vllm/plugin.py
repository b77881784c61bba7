"""The part that runs inside a vLLM server: weights out of a safetensors file that the learner and the server share.

vLLM's own back-ends move weights between GPUs. This one serves what they do not: servers on a CPU, servers that share
the learner's GPU, and servers that see a file system of the learner. It joins vLLM through the entry-point group
`vllm.general_plugins` and is chosen with `--weight-transfer-config '{"backend": "tocsin-file"}'`.

Everything happens inside one call, and the file is proved before the first weight is touched, so there is no moment
at which a caller that goes away leaves a model of half-new weights behind.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from tocsin.trainer.digest import digest_of

BACKEND: Final = "tocsin-file"


def register() -> None:
    """Entry point: make the back-end known. vLLM calls it in every one of its processes, in some more than once."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, __name__, "FileWeightTransferEngine")


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Said once, before the first update."""

    folder: str
    """The only folder whose files are read."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One complete set of weights."""

    name: str
    """File name within the folder."""
    digest: str
    """BLAKE2b of the file, 16 bytes, hexadecimal."""


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads whole files; every parameter of the model must be in each of them."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._folder: Path | None = None

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Remember the folder. Raises `ValueError` when this machine does not have it."""
        folder = Path(init_info.folder).resolve()
        if not folder.is_dir():
            raise ValueError(f"weights folder must be one that the server can read, got `{folder}`")
        self._folder = folder

    def start_weight_update(self) -> None:
        """Nothing yet: until the file is proved the model stays as it is."""

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Prove the file, then load all of it. Raises `ValueError` and leaves the model alone when the proof fails."""
        from vllm.model_executor.model_loader.reload import (  # noqa: PLC0415  as vLLM's own back-ends do
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        path = self._path(update_info.name)
        if (found := digest_of(path)) != update_info.digest:
            raise ValueError(f"weights file `{path.name}` must have the digest {update_info.digest}, got {found}")
        initialize_layerwise_reload(self.model)
        # Opened as a memory map: in shared memory nothing is copied but into the model itself.
        with safe_open(path, framework="pt", device="cpu") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
            finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self) -> None:
        """Nothing left to do."""

    def shutdown(self) -> None:
        """Nothing is held."""

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise ValueError("init_weight_transfer_engine must come before update_weights")
        path = (self._folder / name).resolve()
        if path.parent != self._folder or not path.is_file():
            raise ValueError(f"weights file must lie in `{self._folder}`, got `{name}`")
        return path
