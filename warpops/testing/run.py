"""All checks, in order, and one report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..op import WarpOp
from .derivatives import check_derivatives, derivative_policy
from .gradients import check_gradients, gradient_policy
from .graphs import check_compiled, check_inductor, check_opcheck, varied
from .memory import check_poison, check_races
from .repeats import check_cotangents, check_inputs_kept, check_repeats, check_strides
from .report import Finding, Report, condensed
from .subject import Subject

Check = Callable[[Subject], list[Finding]]

CHECKS: dict[str, Check] = {
    "memory": check_poison,
    "races": check_races,
    "repeats": check_repeats,
    "inputs": check_inputs_kept,
    "gradients": check_gradients,
    "derivatives": check_derivatives,
    "cotangents": check_cotangents,
    "strides": check_strides,
    "opcheck": check_opcheck,
    "compiled": check_compiled,
    "inductor": check_inductor,
}
"""By name, the cheap ones first."""


def run_checks(
    op: WarpOp, args: Sequence[Any], kwargs: Mapping[str, Any], only: Collection[str] | None = None
) -> Report:
    """Run the checks of one call.

    Args:
        only: names of ``CHECKS``; by default all.

    Raises:
        ArgumentError: the call itself is wrong.
    """
    subject = Subject(op, args, kwargs)
    report = Report(op.name)
    try:
        subject.forward()
    except Exception as error:
        if isinstance(error, ArgumentError) and not error.of_launch:
            raise
        report.findings.append(Finding("the call itself", condensed(error)))
        return report
    without = gradient_policy(subject)
    if without is not None:
        report.left_out.append(("gradients", without))
    elif only is None or "derivatives" in only:
        none = derivative_policy(subject)
        if none is not None:
            report.left_out.append(("derivatives", none))
    for name, check in CHECKS.items():
        if only is not None and name not in only:
            continue
        if without is not None and name in ("gradients", "derivatives", "cotangents"):
            continue
        if name == "derivatives" and "derivatives" in dict(report.left_out):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = check(subject)
        except Exception as error:
            found = [Finding(name, f"could not be run to its end:\n{condensed(error)}")]
        report.findings += found
        if not found:
            report.passed.append(name)
    report.left_out += subject.left_out
    if (only is None or "compiled" in only) and len(varied(subject)) == 1:
        report.left_out.append(("dynamic sizes", "no size of this call can be varied by itself"))
    return report
