"""Signals: the first asks a run to stop, the second Ctrl-C ends it at once, and the old handlers come back."""

import signal

import pytest

from tocsin.trainer.signals import StopFlag

BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_sets_the_flag_and_interrupts_nothing(number: signal.Signals):
    with StopFlag() as stop:
        stop.arm()
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        assert stop.signal is number
        assert 128 + stop.signal == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]


@pytest.mark.parametrize("first", BOTH)
def test_ctrl_c_after_a_first_signal_ends_at_once(first: signal.Signals):
    with StopFlag() as stop:
        stop.arm()
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.is_set()


def test_repeated_sigterm_keeps_asking_politely():
    with StopFlag() as stop:
        stop.arm()
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.signal is signal.SIGTERM


@pytest.mark.parametrize("number", BOTH)
def test_before_there_is_anything_to_save_one_signal_ends_the_run(number: signal.Signals):
    with StopFlag() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert stop.signal is number
        with pytest.raises(KeyboardInterrupt):
            stop.arm()


def run_into_an_error() -> None:
    with StopFlag():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        raise ValueError("inside")


def test_the_handlers_from_before_are_back_whatever_ended_the_block():
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(ValueError, match="inside"):
        run_into_an_error()
    assert [signal.getsignal(number) for number in BOTH] == before
