"""`[sampler]` of the configuration: the local sampler or vLLM servers."""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, PositiveInt, model_validator

from tocsin.schemas.base import Count, Model, PositiveSeconds


class SamplerConfig(Model):
    """`[sampler]`: who generates."""

    kind: Literal["local", "vllm"] = "local"
    """`local`: a transformers model in its own process. `vllm`: one or more vLLM servers, ours or the user's."""
    batch_groups: PositiveInt = 16
    """`local`: groups that are generated together. Fixed by group index, because a batch's composition moves the last
    bits. A vLLM server batches by itself."""
    timeout_s: PositiveSeconds = 300.0
    """One batch or one weight sync; then the sampler counts as dead and is started again."""
    max_restarts: Count = 3
    """Times a dead sampler is started again in one run."""
    on_mismatch: Literal["pause", "continue"] = "pause"
    """What happens when weights did not arrive, sent twice: training stands still until somebody resumes or stops it,
    or goes on with a warning."""
    launch: bool = False
    """`vllm`: start the servers with the run and stop them with it."""
    urls: Annotated[list[str], Field(max_length=64)] = []
    """`vllm`: servers that are running already, for instance `http://127.0.0.1:8000`."""
    num_servers: PositiveInt = 1
    """`vllm`: servers to start with `launch`."""
    python: str | None = None
    """`vllm`: interpreter of the environment that holds vLLM, for `launch`; by default `.venv-vllm/bin/python` where
    there is one, else the interpreter of the run."""
    start_timeout_s: PositiveSeconds = 600.0
    """`vllm`: until a server that was started is healthy."""
    memory_fraction: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    """`vllm`: share of the device's memory for a server of `launch`; by default what suits the device."""
    server_args: list[str] = []
    """`vllm`: further arguments of the server, for instance `["--tensor-parallel-size", "2"]`."""
    weight_transfer: Literal["auto", "nccl", "file"] = "auto"
    """`vllm`: how weights travel. `file`: a safetensors file that both sides can read, in shared memory unless
    `weights_dir` says otherwise. `nccl`: packed broadcasts between GPUs. `auto`: `nccl` where the learner's device is
    a GPU and `launch` is off, else `file`."""
    weights_dir: str | None = None
    """`file`: folder that learner and servers share; by default shared memory of this machine."""
    retry_budget_s: Annotated[FiniteFloat, Field(ge=0)] = 60.0
    """`vllm`: how long a request is tried again after connection errors and answers of 5xx, with growing pauses."""
    poll_s: PositiveSeconds = 5.0
    """`vllm`: interval at which each server's metrics are read."""

    @model_validator(mode="after")
    def _consistent(self) -> "SamplerConfig":
        if self.kind == "vllm" and self.launch == bool(self.urls):
            raise ValueError(
                "`sampler` of kind `vllm` must have either `launch = true` or `urls`, got "
                f"{'both' if self.launch else 'neither'}"
            )
        if self.kind == "local" and (self.launch or self.urls):
            raise ValueError('`sampler.launch` and `sampler.urls` go with `kind = "vllm"` and only with it')
        wrong = [url for url in self.urls if not url.startswith(("http://", "https://"))]
        if wrong or len(set(self.urls)) < len(self.urls):
            raise ValueError(
                f"`sampler.urls` must be distinct addresses like `http://127.0.0.1:8000`, got {wrong or self.urls}"
            )
        return self
