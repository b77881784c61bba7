"""What is said when the disk refuses: what could not be written, and what to do."""

import errno
from pathlib import Path

from tocsin.trainer.disk import write_problem


def test_a_full_disk_names_the_file_the_remedy_and_the_step_to_go_on_from(tmp_path: Path):
    error = OSError(errno.ENOSPC, "No space left on device", "runs/a/rollouts/x.parquet")
    assert write_problem(tmp_path, error).startswith(
        "`runs/a/rollouts/x.parquet` could not be written: No space left on device; free space on `/"
    )
    assert write_problem(tmp_path, error).endswith("then start a new run: there is no checkpoint to go on from")
    (tmp_path / "checkpoints" / "step-000050").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000050" / "state.json").touch()
    assert write_problem(tmp_path, error).endswith(f"then `tocsin train --resume {tmp_path}` goes on from step 50")


def test_another_refusal_is_not_taken_for_a_lack_of_space(tmp_path: Path):
    line = write_problem(tmp_path, PermissionError(errno.EACCES, "Permission denied"))
    assert line.startswith(f"`{tmp_path}` could not be written: Permission denied; mend that, then")


def test_a_folder_that_is_gone_is_said_to_be_gone(tmp_path: Path):
    line = write_problem(tmp_path / "gone", FileNotFoundError(errno.ENOENT, "No such file", "x"))
    assert line.startswith(f"the run folder `{tmp_path / 'gone'}` is gone")
    assert "--resume" not in line
