"""The shared vocabulary of Tocsin: what crosses a process, a file or a network.

Read in this order:

1. `base`      strict writers, lenient readers, numbers that may be non-finite
2. `events`    what a run says about itself (`event` is what all have in common; `batch`, the one columnar event of a
               step, `step` and `resources` are the large ones)
3. `diagnosis` what the engine concludes: diagnostics and coverage
4. `actions`   what may be changed, and what happened when somebody did
5. `feed`      the line formats of `events.jsonl` and `feed.jsonl`, and the page a reader gets
6. `knobs`     the registry of everything that can be changed in a running run
7. `control`   a request for such a change, one file in `control/`
8. `config`    the configuration of a run (`fault`, `sampler`, `autotune`, `alerts`); `manifest` describes one folder
9. `export`    JSON Schemas, generated into `schemas/json/` (`page` writes and compares the generated pages)

This package imports nothing else of Tocsin and no machine-learning library.
"""

from tocsin.schemas.base import SCHEMA_VERSION, NonFinite, Number, as_float, is_finite

__all__ = ["SCHEMA_VERSION", "NonFinite", "Number", "as_float", "is_finite"]
