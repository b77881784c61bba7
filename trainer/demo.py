"""The embedded default: pre-train a small model, then let it improve by asynchronous GRPO.

`tocsin demo`: the held-out pass rate rises from 0.51 to 0.98 in about a minute on two cores, pre-training included.
"""

from pathlib import Path
from typing import Final

from tocsin.schemas.autotune import AutotuneConfig, AutotuneMode
from tocsin.schemas.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RewardConfig,
    RunConfig,
)
from tocsin.schemas.fault import FaultConfig
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer import demo_task
from tocsin.trainer.progress import Progress

STEPS: Final = 300
ONSET_STEP: Final = 60
"""Where a planted fault begins unless somebody says otherwise."""
GROWING: Final = ("length-reward", "short-reward", "eos-ignored")
"""Faults that need room for longer completions."""
ROOM_TO_GROW: Final = 32
"""Completion tokens for them."""


TUNED: Final = {
    "POL014": ["learning_rate"],
    "OFF001": ["max_staleness"],
    "OFF016": ["in_flight_groups", "max_staleness"],
    "OFF017": ["microbatch_tokens"],
    "SYS001": ["microbatch_tokens"],
}
"""What `--autotune` may change in the demo, by rule."""


def demo_config(
    folder: Path,
    *,
    seed: int,
    steps: int,
    fault: FaultConfig | None,
    sampler: SamplerConfig | None = None,
    autotune: AutotuneMode | None = None,
) -> RunConfig:
    """Configuration of the demo whose model and data lie in `folder`; the local sampler unless another is given."""
    name = None if fault is None else fault.name
    chosen = SamplerConfig() if sampler is None else sampler
    if name == "stale-weights":
        # The demonstration goes on with what would otherwise stop the run.
        chosen = chosen.model_copy(update={"on_mismatch": "continue"})
    return RunConfig(
        steps=steps,
        seed=seed,
        model=ModelConfig(path=str(folder / "model")),
        data=DataConfig(train=str(folder / "data" / "train.jsonl"), evaluation=str(folder / "data" / "held_out.jsonl")),
        rewards=[RewardConfig(function="exact")],
        knobs=Knobs(
            learning_rate=3e-4,
            groups_per_step=16,
            group_size=8,
            max_completion_tokens=ROOM_TO_GROW if name in GROWING else demo_task.ANSWER_TOKENS + 1,
            max_staleness=1,
            kl_beta=0.01 if name == "wrong-reference" else 0.0,
        ),
        optimizer=OptimizerConfig(schedule="linear", warmup_steps=min(10, steps // 10)),
        evaluation=EvaluationConfig(every=50, prompts=512),
        checkpoint=CheckpointConfig(every=50, keep=2),
        sampler=chosen,
        autotune=None if autotune is None else AutotuneConfig(mode=autotune, allow=TUNED),
        fault=fault,
    )


def prepare_demo(folder: Path, progress: Progress, *, seed: int) -> None:
    """Write data and the pre-trained model into `folder`."""
    from tocsin.trainer.demo_model import pretrain  # noqa: PLC0415  imports torch

    data = folder / "data"
    data.mkdir()
    train, held_out = demo_task.split(seed, train=4096, held_out=512)
    demo_task.write_rows(train, data / "train.jsonl")
    demo_task.write_rows(held_out, data / "held_out.jsonl")
    pretrain(
        folder / "model",
        train,
        seed=seed,
        on_progress=lambda done, total, loss: progress.stage("pre-training the model", done, total),
    )
