"""The gates of every start, in order: all that can be judged once the learner holds the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tocsin.diagnostics import render
from tocsin.schemas.check import Gate
from tocsin.schemas.config import RunConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.gates import GateError, refusal
from tocsin.trainer.gates_config import configuration_gate, prompts_gate
from tocsin.trainer.gates_rewards import rewards_gate
from tocsin.trainer.gates_room import Room, disk_gate, memory_gate
from tocsin.trainer.gates_tokens import Vocabulary, eos_gate, template_gate, vocabulary_gate
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import SamplerFacts
from tocsin.trainer.prompts import PromptSet


@dataclass(frozen=True)
class Launch:
    """A run that is about to start."""

    config: RunConfig
    folder: Path
    """The run's, which need not exist yet."""
    learner: Learner
    prompts: tuple[PromptSet, PromptSet]
    """For training, and held out."""
    steps_done: int = 0

    @property
    def words(self) -> Vocabulary:
        """What the gates about tokens look at."""
        learner, data = self.learner, self.config.data
        return Vocabulary(learner.model, learner.tokenizer, data, self.prompts[0].prompts, learner.eos_ids)

    @property
    def room(self) -> Room:
        """What the gates about room look at."""
        weights = sum(4 * parameter.numel() for parameter in self.learner.parameters)
        return Room(self.config, self.folder, weights, self.learner.device, self.steps_done)


def launch_gates(launch: Launch, sampler: Callable[[], SamplerFacts | None] = lambda: None) -> Iterator[Gate]:
    """Every gate, each looked at when it is asked for. `sampler` answers once the sampler is loaded, if there is one.

    Raises `RewardError` for a reward function that cannot be loaded.
    """
    train, held_out = launch.prompts
    words, room = launch.words, launch.room
    yield configuration_gate(launch.config)
    yield prompts_gate(train, held_out)
    yield disk_gate(room)
    yield memory_gate(room)
    yield template_gate(words)
    yield rewards_gate(launch.config, train.prompts)
    facts = sampler()
    yield eos_gate(words, facts)
    yield vocabulary_gate(words, facts)


class Display(Protocol):
    """Where a starting run shows what was found."""

    def stage(self, text: str) -> None:
        """Say what goes on."""

    def note(self, text: str) -> None:
        """Print a sentence."""


def pass_gates(launch: Launch, knobs: Knobs, display: Display) -> None:
    """Look at every gate before the first step, with the knobs that will be in force.

    Raises `GateError` for what would fail or train the wrong thing; anything milder is shown and logged.
    """
    display.stage("checking data, tokens, rewards and room")
    config = launch.config.model_copy(update={"knobs": knobs})
    gates = list(launch_gates(Launch(config, launch.folder, launch.learner, launch.prompts, launch.steps_done)))
    if lines := refusal(gates):
        raise GateError(lines)
    for found in (found for gate in gates for found in gate.findings):
        render.log_record(found)
        display.note(render.line(found).removeprefix("[tocsin] "))
