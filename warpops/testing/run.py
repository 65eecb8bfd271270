"""All checks, in order, and one report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..op import WarpOp
from .derivatives import check_derivatives
from .gradients import check_gradients
from .graphs import check_compiled, check_inductor, check_opcheck
from .memory import check_poison, check_races
from .repeats import check_cotangents, check_inputs_kept, check_repeats, check_strides
from .report import Finding, LeftOutError, Report, condensed
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
    for name, check in CHECKS.items():
        if only is not None and name not in only:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = check(subject)
        except LeftOutError as why:
            report.left_out.append((name, str(why)))
            continue
        except Exception as error:
            found = [Finding(name, f"could not be run to its end:\n{condensed(error)}")]
        report.findings += found
        if not found:
            report.passed.append(name)
    report.left_out += subject.left_out
    return report
