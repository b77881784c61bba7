"""The rollout process's hand on the local sampler: start it, ask it, notice its death, start it again."""

import contextlib
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from tocsin.schemas.config import RunConfig
from tocsin.trainer.data import Floats
from tocsin.trainer.messages import (
    Generate,
    Generated,
    Load,
    Loaded,
    Probed,
    SamplerFacts,
    Setup,
    Stop,
    Sync,
    TakeProbe,
    Weights,
    WeightsLoaded,
)
from tocsin.trainer.pipes import Inbox, PipeClosed
from tocsin.trainer.processes import child_main_setup, heavy_context, start_child

START_TIMEOUT_S: Final = 600.0
"""For the imports of a fresh process and loading the model; `sampler.timeout_s` is about single batches."""


class SamplerDied(Exception):
    """The sampler process ended or did not answer in time; its batch must be issued again."""


def _sampler_process(connection: Connection) -> None:
    child_main_setup("sampler")
    # torch and transformers are imported in the child only: the rollout process stays small and starts fast.
    from tocsin.trainer.local_sampler import serve  # noqa: PLC0415

    serve(connection)


class LocalSamplerHandle:
    """One local sampler process. Requests are answered one at a time, in order."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._load: Load | None = None
        self._weights: Weights | None = None
        self._timeout_s = 300.0
        self.facts: SamplerFacts | None = None
        """Known once the model is loaded."""
        self.restarts = 0
        self._spawn()

    def _spawn(self) -> None:
        context = heavy_context()
        self._connection, child = context.Pipe()
        self.process: BaseProcess = context.Process(target=_sampler_process, args=(child,), name="tocsin-sampler")
        start_child(self.process, threads=self._threads)
        child.close()
        self._inbox = Inbox(self._connection, name="sampler")

    async def load(self, setup: Setup) -> None:
        """Load the model. Raises `SamplerDied` when the process does not survive it."""
        config = setup.config
        self._timeout_s = config.sampler.timeout_s
        self._load = Load(
            model_path=setup.model_path,
            dtype=config.model.dtype,
            attention=config.model.attention,
            device=sampler_device(config),
            threads=config.device.threads,
            seed=config.seed,
            probe=setup.probe,
            fault=config.fault,
        )
        answer = await self._ask(self._load, START_TIMEOUT_S)
        assert isinstance(answer, Loaded)
        self.facts = answer.facts

    async def probe(self) -> Floats:
        """Log-probs of the probe under the weights held now. Raises `SamplerDied`."""
        answer = await self._ask(TakeProbe(), self._timeout_s)
        assert isinstance(answer, Probed)
        return answer.probe_logprobs

    async def sync(self, message: Sync) -> WeightsLoaded:
        """Load new weights. Raises `SamplerDied`; the weights are then loaded by `restart`."""
        self._weights = Weights(message.version, message.path)
        answer = await self._ask(self._weights, self._timeout_s)
        assert isinstance(answer, WeightsLoaded)
        return answer

    async def generate(self, message: Generate) -> Generated:
        """Generate one batch. Raises `SamplerDied`."""
        answer = await self._ask(message, self._timeout_s)
        assert isinstance(answer, Generated)
        return answer

    async def restart(self) -> WeightsLoaded | None:
        """A fresh process with the model and the weights of the last `sync`; returns its answer to them."""
        self.kill()
        self.restarts += 1
        self._spawn()
        assert self._load is not None, "a sampler is restarted only after it was loaded once"
        await self._ask(self._load, START_TIMEOUT_S)
        if self._weights is None:
            return None
        answer = await self._ask(self._weights, self._timeout_s)
        assert isinstance(answer, WeightsLoaded)
        return answer

    async def _ask(self, message: Load | Weights | Generate | TakeProbe, timeout_s: float) -> object:
        try:
            self._connection.send(message)
            return await self._inbox.get(timeout_s)
        except TimeoutError as error:  # before `OSError`, of which it is one
            raise SamplerDied(f"the sampler did not answer within {timeout_s:g} s") from error
        except (PipeClosed, OSError) as error:
            self.process.join(1.0)
            raise SamplerDied(f"the sampler process ended with exit code {self.process.exitcode}") from error

    def stop(self) -> None:
        """Ask the process to end; kill it when it does not, or has nothing loaded yet."""
        if self._load is not None:
            with contextlib.suppress(OSError):
                self._connection.send(Stop())
            self.process.join(2.0)
        self.kill()

    def kill(self) -> None:
        """End the process now."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._connection.close()


def sampler_device(config: RunConfig) -> str:
    """Device of the local sampler. `auto` follows the learner, which has looked what there is."""
    return config.device.sampler if config.device.sampler != "auto" else config.device.learner
