"""Weights on their way into a vLLM server: whole and proved, or not at all."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from tests.trainer.tiny import TinyPolicy, tiny_requests
from tests.trainer.vllm.office import Office, move, office
from tocsin.trainer.data import Floats, GroupRequest
from tocsin.trainer.vllm.client import ServerError, VllmClient
from tocsin.trainer.vllm.servers import VllmServer
from tocsin.trainer.vllm.transfer import FileTransfer

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4


@pytest.fixture
def desk(tiny_policy: TinyPolicy, vllm_server: VllmServer) -> Iterator[Office]:
    """A learner whose first weights the server holds."""
    with office(tiny_policy, [vllm_server.url]) as desk:
        desk.send(0)
        yield desk


def test_every_version_is_echoed_and_proved_by_the_probe(desk: Office, tiny_policy: TinyPolicy):
    for version in (1, 2, 7):
        move(desk.learner, seed=version)
        answer = desk.send(version)
        assert answer.version == version
        assert set(answer.seconds) == {"pause", "load", "verify", "resume"}
        assert list(answer.probes) == list(answer.checksums) == ["vllm-0"]
        gap, moved = desk.probe.compare(version, answer.probes.values())
        assert gap < TOLERANCE
        assert version == 1 or moved > 0.01
        assert desk.ask(desk.engine.client.weight_version()) == str(version)
    requests = tiny_requests(tiny_policy, 4)
    completions = desk.generate(requests)
    assert {completion.versions for group in completions for completion in group} == {
        ((7, len(completion.token_ids)),) for group in completions for completion in group
    }
    assert desk.worst(requests, completions) < TOLERANCE


def test_a_checksum_tells_weights_apart_and_nothing_else(desk: Office):
    first = desk.send(1).checksums
    assert desk.send(2).checksums == first
    move(desk.learner, seed=2)
    assert desk.send(3).checksums != first


def test_tied_weights_under_one_of_their_names_leave_a_gap_that_the_probe_sees(desk: Office):
    assert desk.learner.model.config.tie_word_embeddings
    move(desk.learner, seed=1, size=0.03)
    answer = desk.send(1, is_aliased=False)
    assert desk.ask(desk.engine.client.weight_version()) == "1", "the version says that all is well"
    assert desk.gap(answer) > 100 * TOLERANCE
    assert desk.gap(desk.send(1)) < TOLERANCE


async def die_after(url: str, desk: Office, *, is_updated: bool) -> None:
    """What a run does that ends in the midst of a sync."""
    client = VllmClient(url, timeout_s=60.0)
    await client.pause(clear_cache=True)
    await client._start_update()
    if is_updated:
        info = FileTransfer(desk.store.folder).update_info(desk.message(1))
        await client._call("POST", "/update_weights", body={"update_info": info}, timeout_s=60.0)
    await client.close()


async def generated(client: VllmClient) -> float:
    return (await client.counters()).generated_tokens


async def is_served(client: VllmClient, request: GroupRequest) -> bool:
    """Whether a prompt is answered. One that waits behind a pause never is, however long one waits."""
    try:
        await asyncio.wait_for(client.generate(request, salt="any"), 1.0)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("is_updated", [False, True])
def test_a_sync_that_broke_off_leaves_a_server_that_waits_for_a_whole_one(
    desk: Office, tiny_policy: TinyPolicy, vllm_server: VllmServer, is_updated: bool
):
    move(desk.learner, seed=1)
    desk.ask(die_after(vllm_server.url, desk, is_updated=is_updated))
    before = desk.ask(generated(desk.engine.client))
    assert not desk.ask(is_served(desk.engine.client, tiny_requests(tiny_policy, 1)[0]))
    assert desk.ask(desk.engine.client.is_paused())
    assert desk.ask(generated(desk.engine.client)) == before
    move(desk.learner, seed=2)
    assert desk.gap(desk.send(2)) < TOLERANCE
    requests = tiny_requests(tiny_policy, 2)
    assert desk.worst(requests, desk.generate(requests)) < TOLERANCE


def test_a_run_can_begin_with_a_server_that_another_left_in_the_midst_of_a_sync(
    desk: Office, tiny_policy: TinyPolicy, vllm_server: VllmServer
):
    desk.ask(die_after(vllm_server.url, desk, is_updated=False))
    with office(tiny_policy, [vllm_server.url]) as another:
        assert another.gap(another.send(0)) < TOLERANCE


async def resumed_probe(desk: Office) -> Floats:
    await desk.engine.client.resume()
    return await desk.engine.probe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bytes", r"weights file `1.safetensors` must have the digest \w{32}, got \w{32}"),
        ("name", r"weights file must lie in `.*`, got `../1.safetensors`"),
        ("missing", r"weights file must lie in `.*`, got `1.safetensors`"),
    ],
)
def test_a_file_that_is_not_the_one_announced_leaves_the_weights_as_they_were(desk: Office, change: str, message: str):
    before = desk.ask(desk.engine.probe())
    move(desk.learner, seed=1)
    announced = desk.message(1)
    if change == "bytes":
        content = bytearray(announced.path.read_bytes())
        content[len(content) // 2] ^= 1
        announced.path.write_bytes(content)
    elif change == "missing":
        announced.path.unlink()
    transfer = FileTransfer(desk.store.folder)
    if change == "name":
        transfer.update_info = lambda sync: {"name": f"../{sync.path.name}", "digest": sync.digest}
    with pytest.raises(ServerError, match=message):
        desk.ask(desk.engine.sync(announced, transfer))
    assert desk.ask(desk.engine.client.is_paused())
    assert desk.ask(desk.engine.client.weight_version()) == "0"
    assert np.array_equal(desk.ask(resumed_probe(desk)), before)
    assert desk.gap(desk.send(1)) < TOLERANCE
