"""One line out of a log: why a start failed, and how far one is."""

import pytest

from tocsin.trainer.vllm.server_log import reason, stage

WORKER = "(Worker pid=8559) ERROR 11-29 21:04:45 [multiproc_executor.py:953] "
ENGINE = "(EngineCore pid=8551) ERROR 11-29 21:04:47 [core.py:1510] "

LOADING = f"""\
(APIServer pid=8524) INFO 11-29 21:04:27 [model.py:733] Resolved architecture: LlamaForCausalLM
{WORKER}WorkerProc failed to start.
{WORKER}Traceback (most recent call last):
{WORKER}  File "loader.py", line 290, in _prepare_weights
{WORKER}    raise RuntimeError(
{WORKER}RuntimeError: Cannot find any model weights with `models/policy`
{ENGINE}EngineCore failed to start.
{ENGINE}Exception: WorkerProc initialization failed. See stack trace for root cause.
Process EngineCore:
Traceback (most recent call last):
  File "core.py", line 1495, in run_engine_core
Exception: WorkerProc initialization failed. See stack trace for root cause.
ValueError: raised while the rest was torn down
Traceback (most recent call last):
  File "utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
[tocsin] the server ended with exit code 1
"""

VALIDATION = """\
Traceback (most recent call last):
  File "config.py", line 121, in __init__
    s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (100) is greater than the derived one [type=value_error, input_value=...]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
[tocsin] the server ended with exit code 1
"""

USAGE = """\
usage: api_server.py [-h] [--headless]
                     [--enable-log-requests | --no-enable-log-requests]
api_server.py: error: unrecognized arguments: --frobnicate
[tocsin] the server ended with exit code 2
"""

CHAIN = """\
Traceback (most recent call last):
  File "a.py", line 1, in a
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in b
ValueError: `x` must be set
"""

KILLED = """\
(APIServer pid=8524) INFO 11-29 21:04:27 [model.py:733] Resolved architecture: LlamaForCausalLM
[tocsin] the server ended with SIGKILL: somebody killed it, or the kernel did for lack of memory
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (LOADING, "RuntimeError: Cannot find any model weights with `models/policy`"),
        (VALIDATION, "User-specified max_model_len (100) is greater than the derived one"),
        (USAGE, "unrecognized arguments: --frobnicate"),
        (CHAIN, "ValueError: `x` must be set"),
        (KILLED, "the server ended with SIGKILL: somebody killed it, or the kernel did for lack of memory"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_is_the_line_that_explains_the_others(log: str, said: str):
    assert reason(log) == said


def test_a_reason_stays_one_line_of_bearable_length():
    said = reason("ValueError: " + "very " * 1000 + "long\n")
    assert len(said) == 400
    assert said.endswith("...")


def test_the_stage_is_the_last_sentence_of_the_server_without_time_and_place():
    assert stage(LOADING) == "Resolved architecture: LlamaForCausalLM"
    assert stage("(APIServer pid=1) INFO 11-29 20:55:33 [api_utils.py:347]   █▄█▀ █     █     █\n") == ""
    assert stage("INFO:     Waiting for application startup.\n") == "Waiting for application startup."
