"""Statistics over the trained tokens of one step, for `StepCompleted`.

Values that are not finite flow into the `Number` fields as they are; they are what the rules look for.

Shape letter: N trained tokens of the step.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tocsin.schemas.knobs import Knobs
from tocsin.schemas.step import LogProbGap, RatioMoments
from tocsin.trainer.loss import LossTerms

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TOP_BUCKET = 8
"""Staleness bucket that holds itself and everything above."""


@dataclass(frozen=True)
class TokenStats:
    """Token statistics of a step under the field names of `StepCompleted`, so that `**vars(stats)` fills them in.

    None, or an empty list, means that no token was trained.
    """

    clip_low_frac: float | None = None
    clip_high_frac: float | None = None
    dual_clip_frac: float | None = None
    entropy: float | None = None
    ratio: list[RatioMoments] = field(default_factory=list)
    ess_frac: float | None = None
    logprob_gap: LogProbGap | None = None
    kl_ref: float | None = None


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Columns over the trained tokens of one micro-batch, on the CPU."""

    logp_N: Doubles
    sampler_logp_N: Doubles
    clip_log_ratio_N: Doubles
    advantage_N: Doubles
    entropy_N: Doubles
    staleness_N: Integers
    kl_ref_N: Doubles | None


class StepTokens:
    """The trained tokens of one step, collected micro-batch by micro-batch.

    Start a new one for each attempt: after an out-of-memory retry the old one holds tokens twice.
    """

    def __init__(self) -> None:
        self._parts: list[_Tokens] = []

    def append(self, terms: LossTerms) -> None:
        """Take the tokens of one micro-batch off the device."""
        self._parts.append(
            _Tokens(
                logp_N=_doubles(terms.logp_N),
                sampler_logp_N=_doubles(terms.sampler_logp_N),
                clip_log_ratio_N=_doubles(terms.clip_log_ratio_N),
                advantage_N=_doubles(terms.advantage_N),
                entropy_N=_doubles(terms.entropy_N),
                staleness_N=terms.staleness_N.cpu().numpy().astype(np.int64),
                kl_ref_N=None if terms.kl_ref_N is None else _doubles(terms.kl_ref_N),
            )
        )

    def nonfinite(self) -> list[str]:
        """Which log-probs hold a NaN or an infinity, in the words of `StepCompleted.nonfinite`."""
        found = []
        if not all(np.isfinite(part.logp_N).all() for part in self._parts):
            found.append("learner_logprob")
        if not all(np.isfinite(part.sampler_logp_N).all() for part in self._parts):
            found.append("sampler_logprob")
        return found

    def finish(self, knobs: Knobs) -> TokenStats:
        """The statistics of everything appended; `knobs` are those that the loss used."""
        parts = [part for part in self._parts if len(part.logp_N) > 0]
        if not parts:
            return TokenStats()
        kl_refs = [part.kl_ref_N for part in parts if part.kl_ref_N is not None]
        advantage_N = np.concatenate([part.advantage_N for part in parts])
        staleness_N = np.concatenate([part.staleness_N for part in parts])
        # Overflow to infinity, and the NaN of inf / inf, are results here and not accidents.
        with np.errstate(over="ignore", invalid="ignore"):
            log_ratio_N = np.concatenate([part.logp_N - part.sampler_logp_N for part in parts])
            ratio_N = np.exp(log_ratio_N)
            judged_N = np.exp(np.concatenate([part.clip_log_ratio_N for part in parts]))
            worse_N = advantage_N < 0
            return TokenStats(
                clip_low_frac=_share(worse_N & (judged_N < 1 - knobs.clip_low)),
                clip_high_frac=_share((advantage_N > 0) & (judged_N > 1 + knobs.clip_high)),
                dual_clip_frac=_share(worse_N & (judged_N > knobs.dual_clip)),
                entropy=float(np.concatenate([part.entropy_N for part in parts]).mean()),
                ratio=_moments(log_ratio_N, staleness_N),
                ess_frac=float(ratio_N.sum() ** 2 / (len(ratio_N) * (ratio_N * ratio_N).sum())),
                logprob_gap=_gap(log_ratio_N),
                kl_ref=float(np.concatenate(kl_refs).mean()) if kl_refs else None,
            )


def _moments(log_ratio_N: Doubles, staleness_N: Integers) -> list[RatioMoments]:
    bucket_N = np.minimum(staleness_N, TOP_BUCKET)
    moments = []
    for bucket in np.unique(bucket_N).tolist():
        logs = log_ratio_N[bucket_N == bucket]
        ratios = np.exp(logs)
        moments.append(
            RatioMoments(
                staleness=bucket,
                tokens=len(ratios),
                mean=float(ratios.mean()),
                mean_square=float((ratios * ratios).mean()),
                max=float(ratios.max()),
                log_mean=float(logs.mean()),
                k3=float((np.expm1(logs) - logs).mean()),
            )
        )
    return moments


def _gap(log_ratio_N: Doubles) -> LogProbGap:
    absolute_N = np.abs(log_ratio_N)
    p95, p99 = np.quantile(absolute_N, (0.95, 0.99)).tolist()
    return LogProbGap(
        k1=float(-log_ratio_N.mean()),
        k3=float((np.expm1(log_ratio_N) - log_ratio_N).mean()),
        abs_mean=float(absolute_N.mean()),
        abs_p95=p95,
        abs_p99=p99,
        abs_max=float(absolute_N.max()),
    )


def _share(hits: npt.NDArray[np.bool_]) -> float:
    return float(hits.mean())


def _doubles(tensor: Tensor) -> Doubles:
    return tensor.detach().cpu().double().numpy()
