"""What a heartbeat of the rollout process says."""

import asyncio

import pytest

from tocsin.schemas.events import ComponentHeartbeat
from tocsin.trainer.activity import Activity
from tocsin.trainer.messages import Heartbeat


def beat(activity: Activity) -> ComponentHeartbeat:
    """The first heartbeat."""

    async def first() -> Heartbeat:
        sent: asyncio.Queue[Heartbeat] = asyncio.Queue()
        task = asyncio.create_task(activity.report(sent.put_nowait, every_s=0.01))
        message = await sent.get()
        task.cancel()
        return message

    return asyncio.run(first()).event


def test_what_has_gone_on_for_longest_is_named_while_other_things_come_and_go():
    activity = Activity()
    with activity.doing("score"):
        with activity.doing("generate"):
            first = beat(activity)
        with activity.doing("generate"):
            second = beat(activity)
    assert (first.busy, second.busy) == ("score", "score")
    assert second.busy_s > first.busy_s >= 0.01


def test_an_activity_that_is_over_leaves_the_next_oldest_and_at_last_idleness():
    activity = Activity()
    with activity.doing("sync"):
        pass
    with activity.doing("generate"):
        assert beat(activity).busy == "generate"
    assert beat(activity).busy == "idle"


def test_an_activity_that_fails_is_over():
    activity = Activity()
    with pytest.raises(OSError, match="gone"), activity.doing("sync"):
        raise OSError("gone")
    assert activity.longest[1] == "idle"
