"""One vLLM server over HTTP: completions, weights, metrics. Every call has a deadline and its answer is classified.

`Refused` will be refused again, `Unavailable` may work later or elsewhere. Nothing is tried again in here: whether,
when and on which server is the decision of `sampler`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx
import numpy as np

from tocsin.trainer.data import Completion, Floats, GroupRequest, Ints
from tocsin.trainer.vllm.answers import (
    BadAnswer,
    Counters,
    ServerFacts,
    completions_of,
    counters_of,
    facts_of,
    prompt_logprobs_of,
)

DEV_MODE: Final = "VLLM_SERVER_DEV_MODE=1"
GENERATE: Final = "/inference/v1/generate"
CALL_TIMEOUT_S: Final = 30.0
"""For calls that compute nothing."""
KEEP_ALIVE_S: Final = 2.0
"""How long an idle connection is used again. vLLM closes one after 5 s (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), and a call
that is written just then is lost: whoever called cannot tell that from a server that died."""
OWN_CONNECTION: Final = {"Connection": "close"}
"""Of every call that asks for no tokens. They are few, nothing tries them again at once, and a server closes the
connection right behind an answer of 5xx without saying so."""


class ServerError(Exception):
    """A call to a server failed."""


class Refused(ServerError):
    """The server understood and refused: the same call will be refused again."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Unavailable(ServerError):
    """No answer, or an answer of 5xx: another attempt, or another server, may succeed."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status
        """None when there was no answer."""


class TimedOut(Unavailable):
    """The server took the call and did not answer in time."""


class VllmClient:
    """The routes that a trainer needs of one server. Raises `Refused` or `Unavailable` from every method."""

    def __init__(self, url: str, *, timeout_s: float):
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        # No limit on connections: the slots bound what is in flight, and a pool that is smaller would hide it. Nothing
        # from the environment: a proxy has no business between a trainer and its servers.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_S)
        self._http = httpx.AsyncClient(base_url=self.url, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def generate(self, request: GroupRequest, *, salt: str) -> list[Completion]:
        """The completions of one group, exactly as sampled: token ids and log-probs of the engine, version spans.

        `salt` keeps prefixes that were cached under other weights out of reach. No seed goes with a request: what is
        drawn depends on the batch anyway, and vLLM 0.32 on a CPU dies of a seeded request whose prompt it computes
        anew in two parts, as it does after every pause.
        """
        body = {
            "token_ids": request.prompt.token_ids.tolist(),
            "sampling_params": {
                "n": request.size,
                "temperature": request.temperature,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "max_tokens": request.max_tokens,
                "logprobs": 0,
                "detokenize": False,
            },
            "cache_salt": salt,
        }
        answer = await self._call("POST", GENERATE, body=body, timeout_s=self._timeout_s)
        with self._understood(GENERATE):
            return completions_of(answer, request)

    async def prompt_logprobs(self, ids: Ints) -> Floats:
        """[L - 1] log-probs of each token of `ids` [L] given those before it. Computed anew, never from a cache."""
        body = {
            "token_ids": ids.tolist(),
            "sampling_params": {
                "max_tokens": 1,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "prompt_logprobs": 0,
                "detokenize": False,
            },
        }
        answer = await self._call("POST", GENERATE, body=body, timeout_s=self._timeout_s)
        with self._understood(GENERATE):
            return np.array(prompt_logprobs_of(answer, ids.tolist()), dtype=np.float32)

    async def healthy(self) -> bool:
        """Whether the server says that its engine works."""
        try:
            await self._call("GET", "/health", timeout_s=CALL_TIMEOUT_S)
        except ServerError:
            return False
        return True

    async def facts(self) -> ServerFacts:
        """What runs on the server. Raises `Refused` that names the flag when the server hides it."""
        try:
            info = await self._call("GET", "/server_info", params={"config_format": "json"}, timeout_s=60.0)
        except Refused as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            raise Refused(
                f"{self.url} must offer vLLM's routes for reinforcement learning, and has none: start it with "
                f"{DEV_MODE} in its environment, or with `tocsin vllm serve`",
                error.status,
            ) from error
        with self._understood("/server_info"):
            return facts_of(info)

    async def world_size(self) -> int:
        """Workers of the server that receive weights."""
        answer = await self._call("GET", "/get_world_size")
        with self._understood("/get_world_size"):
            return int(answer["world_size"])

    async def is_paused(self) -> bool:
        """Whether generation stands still."""
        answer = await self._call("GET", "/is_paused")
        with self._understood("/is_paused"):
            return bool(answer["is_paused"])

    async def pause(self, *, clear_cache: bool) -> None:
        """Freeze everything that is in flight. With `clear_cache` its keys and values are computed anew afterwards."""
        params = {"mode": "keep", "clear_cache": "true" if clear_cache else "false"}
        await self._call("POST", "/pause", params=params, timeout_s=self._timeout_s)

    async def resume(self) -> None:
        """Go on with what was frozen."""
        await self._call("POST", "/resume")

    async def init_transfer(self, info: Mapping[str, Any]) -> None:
        """Tell the transfer back-end how weights will come."""
        body = {"init_info": dict(info)}
        await self._call("POST", "/init_weight_transfer_engine", body=body, timeout_s=self._timeout_s)

    async def update_weights(self, update_info: Mapping[str, Any], version: int) -> None:
        """One complete update, and the version that every token from now on is stamped with."""
        await self._start_update()
        info, stamp = {"update_info": dict(update_info)}, {"weight_version": str(version)}
        await self._call("POST", "/update_weights", body=info, timeout_s=self._timeout_s)
        await self._call("POST", "/finish_weight_update", body=stamp, timeout_s=self._timeout_s)

    async def _start_update(self) -> None:
        try:
            await self._call("POST", "/start_weight_update", timeout_s=self._timeout_s)
        except Unavailable as error:
            if error.status is None:
                raise
            # An update that somebody began and never finished is in the way. It is closed, not used: the server is
            # paused, and all of its weights are replaced now.
            await self._call("POST", "/finish_weight_update", timeout_s=self._timeout_s)
            await self._call("POST", "/start_weight_update", timeout_s=self._timeout_s)

    async def weight_version(self) -> str:
        """The version that the engine holds."""
        answer = await self._call("GET", "/weight_info")
        with self._understood("/weight_info"):
            return str(answer["weight_version"])

    async def checksums(self) -> dict[str, str]:
        """By parameter, a checksum of the weights held."""
        body = {"action": "checksum"}
        answer = await self._call("POST", "/weight_checker", body=body, timeout_s=self._timeout_s)
        with self._understood("/weight_checker"):
            return dict(answer["checksums"])

    async def counters(self) -> Counters:
        """The engine's own metrics."""
        text = await self._text("GET", "/metrics")
        with self._understood("/metrics"):
            return counters_of(text)

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Turn an answer that is not what vLLM says into a refusal: it would be the same the next time."""
        try:
            yield
        except BadAnswer as error:
            raise Refused(f"{self.url}{path}: {error}", httpx.codes.OK) from error
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise Refused(
                f"{self.url}{path} must answer as vLLM does, and does not ({reason}); is this a vLLM server?",
                httpx.codes.OK,
            ) from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        response = await self._send(method, path, body, params, timeout_s)
        if not response.content:
            return {}
        try:
            answer = response.json()
        except ValueError as error:
            raise Refused(f"{self.url}{path} must answer with JSON; is this a vLLM server?", 200) from error
        return answer if isinstance(answer, dict) else {}

    async def _text(self, method: str, path: str) -> str:
        response = await self._send(method, path, None, None, CALL_TIMEOUT_S)
        return response.text

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
        timeout_s: float,
    ) -> httpx.Response:
        headers = None if path == GENERATE else OWN_CONNECTION
        try:
            # httpx counts each phase by itself, and an answer that trickles would never be late.
            async with asyncio.timeout(timeout_s):
                response = await self._http.request(
                    method, path, json=body, params=params, headers=headers, timeout=timeout_s
                )
        except (httpx.TimeoutException, TimeoutError) as error:
            raise TimedOut(f"{self.url}{path} did not answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"{self.url}{path} cannot be reached: {type(error).__name__} {error}".rstrip(" .")
            ) from error
        if response.is_success:
            return response
        reason = f"{self.url}{path} answered {response.status_code}: {_reason(response)}"
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise Unavailable(reason, response.status_code)
        raise Refused(reason, response.status_code)


def _reason(response: httpx.Response) -> str:
    """The message in an error answer, on one line of at most 300 characters. It is the server's, so untrusted."""
    try:
        found = response.json()
    except ValueError:
        found = response.text
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return " ".join(str(found).split())[:300]
