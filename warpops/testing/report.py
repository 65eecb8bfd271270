"""Findings, and the one text that they are told in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ..effects import Hazard, Site
from ..explain import wrapped
from ..frozen import frozen


@frozen
class Finding:
    """One thing that is wrong."""

    check: str
    """The check that found it, in a few words: ``gradient of 'x'``."""
    text: str
    """What was seen, and what to do."""
    suspects: tuple[str, ...] = ()
    """Lines of the kernel that may be at fault."""


class LeftOutError(Exception):
    """A check can't be made; the text says why."""


@dataclass
class Report:
    """What a run of all checks came to."""

    op: str
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Checks that could not be made, with the reason."""

    def text(self) -> str:
        """The report, 80 columns wide."""
        count = len(self.findings)
        lines = [f"{self.op}: {count} {'thing is' if count == 1 else 'things are'} wrong"]
        for finding in self.findings:
            lines += ["", finding.check]
            for paragraph in finding.text.splitlines():
                lines += wrapped(paragraph, "    ")
            for suspect in finding.suspects:
                lines += wrapped(f"suspected: {suspect}", "    ", "      ")
        if self.passed:
            lines += ["", *wrapped(f"passed: {', '.join(self.passed)}", "", "    ")]
        for check, why in self.left_out:
            lines += wrapped(f"not checked: {check} ({why})", "", "    ")
        return "\n".join(lines)


def place(site: Site) -> str:
    """A place in the kernel with the line that is there: ``kernels.py:12: `y[i] = x[i]` ``."""
    where = f"{os.path.basename(site.file)}:{site.line}"
    return f"{where}: `{site.code}`" if site.code else where


def suspicion(hazard: Hazard) -> str:
    """A hazard as a line of a report, without the folder of the kernel's file."""
    file = hazard.site.file
    return f"{place(hazard.site)} ({hazard.message.replace(file, os.path.basename(file))})"


def condensed(error: BaseException, limit: int = 6) -> str:
    """The lines of an exception's text that tell something; Dynamo's run over pages."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    noise = ("Developer debug context", "For more details", "Set TORCH", "You can suppress", "Hint:", "from user code")
    kept = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith(noise):
            continue
        if line.startswith(("File ", "^")):
            break
        kept.append(line if len(line) < 400 else line[:400] + " ...")
    return "\n".join([f"{type(error).__name__}: {kept[0] if kept else '(no text)'}", *kept[1:limit]])
