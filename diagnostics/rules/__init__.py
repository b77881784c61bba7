"""The rules, one file each: thresholds, documentation and check in one place.

To add a rule: write the file, add it here, plant its fault in a scenario, run `make generate`.
"""

from typing import Final

from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules.clip_fraction_high import ClipFractionHigh
from tocsin.diagnostics.rules.nan_inf import NanInf
from tocsin.diagnostics.rules.staleness_high import StalenessHigh
from tocsin.diagnostics.rules.vram_underused import VramUnderused
from tocsin.diagnostics.rules.zero_std_groups import ZeroStdGroups

ALL_RULES: Final[tuple[Rule, ...]] = (
    ZeroStdGroups(),
    ClipFractionHigh(),
    NanInf(),
    StalenessHigh(),
    VramUnderused(),
)
"""Every rule with its default thresholds."""
