"""The embedded default: pre-train a small model, then let it improve by asynchronous GRPO.

`tocsin demo --seed N` for N from 0 to 4: the held-out pass rate rises from between 0.44 and 0.51 to 0.98 or more, in
one to two minutes on two cores, pre-training included.
"""

from pathlib import Path
from typing import Final

from tocsin.schemas.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    FaultConfig,
    ModelConfig,
    OptimizerConfig,
    RewardConfig,
    RunConfig,
)
from tocsin.schemas.knobs import Knobs
from tocsin.trainer import demo_task
from tocsin.trainer.progress import Progress

STEPS: Final = 300
ONSET_STEP: Final = 60
"""Where a planted fault begins unless somebody says otherwise."""


def demo_config(folder: Path, *, seed: int, steps: int, fault: FaultConfig | None) -> RunConfig:
    """Configuration of the demo whose model and data lie in `folder`."""
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
            max_completion_tokens=demo_task.ANSWER_TOKENS + 1,
            max_staleness=1,
        ),
        optimizer=OptimizerConfig(schedule="linear", warmup_steps=min(10, steps // 10)),
        evaluation=EvaluationConfig(every=50, prompts=512),
        checkpoint=CheckpointConfig(every=50, keep=2),
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
