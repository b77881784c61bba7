"""Imported once into the process that runs are forked from, so that no run waits for its libraries."""

from tocsin.trainer.bench.trial import import_libraries

import_libraries()
