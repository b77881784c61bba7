"""Fixtures of the trainer's tests."""

import pytest

from tests.trainer.tiny import TinyPolicy, make_tiny_policy


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> TinyPolicy:
    """The pre-trained policy; nothing may write into its folder."""
    return make_tiny_policy(tmp_path_factory.mktemp("tiny-policy"))
