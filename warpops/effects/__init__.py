"""The effects analysis: what a Warp kernel's body does to its arrays, read from its source.

``analyse(kernel)`` interprets the kernel's syntax tree abstractly, never Warp's generated code, and returns plain data
(``model``). It decides for certain or not at all. Data flows one way:

``source`` (whose code, which object a name means) -> ``statements`` / ``expressions`` / ``calls`` (the interpreter,
over ``values`` and ``state``) -> a ``Record`` of accesses and events -> ``conclude`` and ``hazards`` (``Effects``).
"""

from .analyse import analyse
from .model import ArrayEffects, AxisUse, Effects, Guard, Hazard, Premise, Site

__all__ = ["ArrayEffects", "AxisUse", "Effects", "Guard", "Hazard", "Premise", "Site", "analyse"]
