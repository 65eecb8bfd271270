"""One run of a program: its launches checked as they come, and recorded where gradients are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

import torch
import warp as wp

from ..arguments.handle import check_unchanged, remember, stamp
from ..effects import Effects
from ..effects.analysis import before_launch
from ..errors import GradientError, SignatureError
from ..launch import switch
from ..launch.kept import launch_kept
from ..launch.reverse import load
from ..private import warp_code, warp_types
from ..private.warp_calls import (
    LIBRARY,
    Watcher,
    byte_range,
    is_other_array,
    is_struct_instance,
    root_array,
    title_of,
)
from ..rewrite.loops import choose_adjoint
from .checked import launch_checked
from .checks import check_followed, check_handles, check_launch, leaves, warn_once
from .launches import Called, Launched, unchanging
from .memory import Block, Maker, Ref, Use, Value, adjoint_of, bytes_of, uses_of
from .take import Take


class Run(Watcher):
    """Watches one run of a program. It checks in every run, and records in those of a backward.

    Args:
        take: writes the run down, so that it can be repeated without the program's Python; None where it can't be.
    """

    def __init__(self, op: str, device: Any, stream: Any, recording: bool, take: Take | None) -> None:
        self.op, self.device, self.stream, self.recording, self.take = op, device, stream, recording, take
        self.maker = take or Maker()
        self.blocks: list[Block] = []
        self.events: list[Launched | Called] = []
        self.objects: list[Any] = []
        """The objects of Warp that the program makes: its recorded launches need them."""

    def add(
        self,
        name: str,
        tensor: torch.Tensor,
        given: bool = False,
        gradient: torch.Tensor | None = None,
        active: bool = False,
        reached: bool = False,
    ) -> None:
        """An array of the program's own arguments, dense."""
        if tensor.numel() == 0:
            return
        low = tensor.data_ptr()
        self.blocks.append(
            Block(
                low,
                low + tensor.numel() * tensor.element_size(),
                name,
                bytes_of(tensor) if self.recording else tensor,
                tensor,
                self.maker,
                given,
                bytes_of(gradient) if gradient is not None else None,
                active,
                reached,
            )
        )

    def block_of(self, array: Any) -> Block | None:
        pointer = array.ptr
        for block in self.blocks:
            if block.low <= pointer < block.high:
                return block
        if not self.recording and self.take is None:
            return None
        root = root_array(array)
        low, high = byte_range(root)
        if not low <= pointer < high:
            low, high = byte_range(array)
        whole: Any = wp.array(ptr=low, dtype=wp.uint8, shape=(high - low,), device=array.device)
        block = Block(low, high, "an array of the program's own", wp.to_torch(whole), root, self.maker)
        self.blocks.append(block)
        if self.take is not None:
            self.take.adopt(root, low, high)
            if root.device != self.device:
                self.take.refuse("memory of another device")
        return block

    def ref(self, label: str, array: Any, use: Use) -> Ref:
        block = self.block_of(array) if array.size else None
        low, high = byte_range(array) if array.size else (0, 0)
        if block is not None and block.given and use.writes:
            if use.sure:
                self.refuse_write(block, use)
            use = replace(use, writes=False)
        live = block is not None and block.active and warp_types.holds_floats(array.dtype)
        return Ref(
            label, array.dtype, tuple(array.shape), tuple(array.strides), array.ptr or 0, low, high, block, use, live
        )

    def refuse_write(self, block: Block, use: Use) -> NoReturn:
        where = f" at {use.site}: `{use.site.code}`" if hasattr(use.site, "code") else f", in {use.site}"
        raise SignatureError(
            f"{self.op}: '{block.name}' is an input, and the program writes it{where}. Name it on the right (fresh "
            f"output), on both sides (in-out), in mutates (changed in place), or work on scratch"
        )

    # --- what Warp's functions come to --------------------------------------------------------------------------------

    def emptied(self, array: Any) -> None:
        """It is found when it is first used."""

    def made(self, value: Any, call: dict[str, Any]) -> None:
        self.objects.append(value)
        remember(value)
        if self.take is not None:
            self._see(call.values())
            self.take.make(value, call)

    def change(self, value: Any, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        result = original(value, **call)
        if self.take is not None:
            self._see(call.values())
            self.take.call(original, {"self": value, **call}, result)
        return result

    def _see(self, values: Iterable[Any]) -> None:
        """Find the memory of all arrays."""
        for array in (value for value in values if isinstance(value, wp.array) and value.size):
            self.block_of(array)

    def read(self, name: str, array: Any) -> None:
        if self.take is not None:
            self.take.refuse(f"{name} reads an array")
        if self.recording and isinstance(array, wp.array) and array.size and warp_types.holds_floats(array.dtype):
            block = self.block_of(array)
            if block is not None and block.active:
                raise GradientError(
                    f"{self.op}: the program reads '{block.name}' as numbers with {name}, through which no gradient "
                    f"can flow; keep it in arrays, call under torch.no_grad(), or name the inputs that it depends on "
                    f"in nondiff"
                )

    def launch(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        kernel = call["kernel"]
        call["record_tape"] = False
        if call["stream"] is None:
            if call["device"] is None:
                call["device"] = self.device
            if self.stream is not None and wp.get_device(call["device"]) == self.device:
                call["stream"] = self.stream
        if call["adjoint"]:
            if self.recording:
                raise GradientError(
                    f"{self.op}: the program launches the adjoint of {kernel.key}, which has none itself"
                )
            if self.take is not None:
                self.take.refuse("an adjoint launch of the program's own")
            return original(**call)
        effects, uses = uses_of(kernel)
        given = dict(leaves(kernel, (*call["inputs"], *call["outputs"])))
        call["dim"] = check_launch(self.op, kernel, effects, given, call["dim"])
        device = call["device"] if call["stream"] is None else call["stream"].device
        objects = check_handles(self.op, kernel, effects, given, device)
        if self.take is not None:
            title = f"{self.op}: the program launches {kernel.key}"
            for label in effects.handles.keys() & given.keys() - effects.arrays.keys():
                self.take.handle(title, label, effects.handles[label], int(given[label]))
            self._see(given.values())
        if not self.recording:
            self._check_inputs(given, uses)
            return self._launch(original, call, given, uses)
        spans = [(block.low, block.high) for block in self.blocks]
        check_followed(self.op, kernel, effects, given, spans)
        taken = self._arguments(kernel, given, uses)
        return self._record(lambda: self._launch(original, call, given, uses), call, effects, taken, objects)

    def _launch(self, original: Any, call: dict[str, Any], given: dict[str, Any], uses: dict[str, Use] | None) -> Any:
        """The launch itself."""
        before_launch(call["kernel"])
        if switch.scopes and not call["adjoint"]:
            return launch_checked(self.op, original, call, self.stream)
        result = original(**call)
        if self.take is not None:
            self.take.launch(call, given, uses)
        return result

    def _check_inputs(self, given: dict[str, Any], uses: dict[str, Use]) -> None:
        """Refuse a launch that surely writes one of the program's inputs."""
        for label, use in uses.items():
            value = given.get(label)
            block = self.block_of(value) if use.sure and isinstance(value, wp.array) and value.size else None
            if block is not None and block.given:
                self.refuse_write(block, use)

    def _arguments(self, kernel: Any, given: dict[str, Any], uses: dict[str, Use]) -> dict[str, Any]:
        types = dict(warp_types.argument_types(kernel))
        found = {}
        for label, value in given.items():
            if isinstance(value, wp.array):
                found[label] = self.ref(label, value, uses.get(label, Use()))
            elif value is not None and warp_types.is_array(warp_types.type_at(types, label)) and is_other_array(value):
                raise GradientError(
                    f"{self.op}: the program gives {kernel.key} a {type(value).__name__} for '{label}', through which "
                    f"the op can't follow gradients; pass a wp.array"
                )
            else:
                found[label] = unchanging(value)
        return found

    def _record(
        self,
        launch: Callable[[], Any],
        call: dict[str, Any],
        effects: Effects,
        arguments: dict[str, Any],
        objects: dict[str, Any],
    ) -> Any:
        kernel = call["kernel"]
        for value in objects.values():
            self._warn_of_vertices(kernel, value)
        refs = [value for value in arguments.values() if isinstance(value, Ref)]
        flows = any(ref.live and ref.use.reads for ref in refs)
        wanted = flows or any(ref.live and ref.use.writes for ref in refs)
        values: dict[str, Value] = {}
        if wanted:
            for ref in refs:
                if ref.block is not None and ref.use.state == "before":
                    values[ref.label] = ref.block.value(ref.low, ref.high)
        for ref in refs:
            if ref.block is not None and ref.use.writes:
                ref.block.overwrite(ref.low, ref.high)
        result = launch()
        if not wanted:
            return result
        for ref in refs:
            if ref.block is None:
                continue
            if ref.use.state == "after":
                values[ref.label] = ref.block.value(ref.low, ref.high)
            flowed = flows and ref.use.writes and ref.differentiable
            ref.block.active = ref.block.active or flowed
            arguments[ref.label] = replace(ref, value=values.get(ref.label), live=ref.live or flowed)
        options = {name: call[name] for name in ("dim", "max_blocks", "block_dim", "device")}
        stamps = {label: (value, stamp(value)) for label, value in objects.items()}
        self.events.append(Launched(kernel, effects, options, arguments, stamps))
        return result

    def _warn_of_vertices(self, kernel: Any, value: Any) -> None:
        arrays = (value.points, value.velocities) if isinstance(value, wp.Mesh) else ()
        blocks = [self.block_of(array) for array in arrays if isinstance(array, wp.array) and array.size]
        if any(block is not None and block.active for block in blocks):
            warn_once(
                (self.op, "a mesh"),
                f"{self.op}: the program makes a mesh of arrays that require a gradient, which they don't get from what "
                f"the kernel {kernel.key} asks the mesh; read the vertices from an array argument",
            )

    def call(self, name: str, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        reads, writes = LIBRARY[name]
        title = title_of(name)
        refs: dict[str, Ref] = {}
        for argument in dict.fromkeys((*reads, *writes)):
            array = call[argument]
            if self.recording and is_other_array(array):
                raise GradientError(
                    f"{self.op}: the program calls {title} on a {type(array).__name__}, through which the op can't "
                    f"follow gradients; pass a wp.array"
                )
            if isinstance(array, wp.array) and array.size:
                written = argument in writes
                refs[argument] = self.ref(argument, array, Use(argument in reads, None, written, written, title, True))
        if not self.recording:
            if self.take is not None:
                self._see(call.values())
            return self._call(original, call)
        sources = [refs[a] for a in reads if a in refs and refs[a].live]
        targets = [refs[a] for a in writes if a in refs and refs[a].block is not None and refs[a].differentiable]
        for argument in writes:
            if argument in refs:
                block = refs[argument].block
                assert block is not None
                block.overwrite(refs[argument].low, refs[argument].high)
        if sources and not targets and name in ("array_sum", "array_inner"):
            self.read(title, call[reads[0]] if refs[reads[0]].live else call[reads[-1]])
        result = self._call(original, call)
        if not sources and not any(ref.live for ref in targets):
            return result
        for ref in targets:
            assert ref.block is not None
            ref.block.active = ref.block.active or bool(sources)
        if targets:
            refs |= {r.label: replace(r, live=True) for r in targets if r.block is not None and r.block.active}
            self.events.append(Called(title, tuple(refs.values()), adjoint_of(name, refs, call)))
        return result

    def _call(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        result = original(**call)
        if self.take is not None:
            self.take.call(original, call, result)
        return result

    # --- backward -----------------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """The adjoints of what was recorded, last first, with the gradients that the blocks hold."""
        for event in reversed(self.events):
            written = [ref.block for ref in event.refs if ref.use.writes and ref.live]
            if not any(block is not None and block.reached for block in written):
                continue
            if isinstance(event, Called):
                if event.adjoint is None:
                    raise GradientError(
                        f"{self.op}: the program's gradient passes through {event.name}, which has none; keep it to "
                        f"ints, or write that step as a kernel"
                    )
                if self.take is not None:
                    self.take.adjoint(event)
                event.adjoint(
                    {ref.label: ref.gradient_view() for ref in event.refs if ref.live and ref.block is not None}
                )
            else:
                self._launch_adjoint(event)
            for ref in event.refs:
                if ref.live and ref.block is not None and ref.use.reads:
                    ref.block.reached = True
        self.events.clear()

    def _launch_adjoint(self, event: Launched) -> None:
        kernel = event.kernel
        choice = choose_adjoint(kernel, event.effects)
        hazards = [h for h in choice.hazards if h.unless is None or not event.turns_once(h.unless)]
        for hazard in (h for h in hazards if h.refused):
            raise GradientError(
                f"{self.op}: the program's gradient passes through the kernel {kernel.key}: {hazard.message} "
                f"({hazard.site})"
            )
        if hazards:
            warn_once(
                (self.op, kernel.key),
                f"{self.op}: Warp's adjoint of the kernel {kernel.key} may be wrong at {hazards[0].site}: "
                f"{hazards[0].advised}",
            )
        if not warp_code.backward_enabled(kernel):
            raise GradientError(
                f"{self.op}: the program's gradient passes through the kernel {kernel.key}, which is compiled without "
                f"its backward (enable_backward=False)"
            )
        title = f"{self.op}: the program's gradient passes through the kernel {kernel.key}"
        check_unchanged(title, list(event.objects), [(held,) for held in event.objects.values()])
        plan, block_dim = choice.plan, event.options.get("block_dim")
        made = None if plan is None else load(title, kernel, plan, self.device, block_dim)
        private: list[Any] = []
        arrays = event.rebuilt(self.device, private)
        adjoints: list[Any] = []
        for (label, _), array in zip(warp_types.argument_types(event.kernel), arrays, strict=True):
            known = choice.effects.arrays.get(label)
            if isinstance(array, wp.array):
                if array.grad is not None and known is not None and known.misled:
                    raise GradientError(
                        f"{self.op}: the program's gradient passes through {kernel.key}: {known.misled}"
                    )
                adjoints.append(None if known is not None and known.attached_alone else array.grad)
            else:
                adjoints.append(array._cls() if is_struct_instance(array) else None)
        call = {"stream": self.stream, "record_tape": False, **event.options}
        if made is not None and made.counts is not None:
            if self.take is not None:
                self.take.refuse("a gradient that keeps what stores overwrite")
            launch_kept(title, made, arrays, adjoints, torch.device(wp.device_to_torch(self.device)), call)
            return
        kernel = kernel if made is None else made.kernel
        call |= {"kernel": kernel, "inputs": arrays, "adj_inputs": adjoints, "adjoint": True}
        _, uses = uses_of(event.kernel)
        read = {label: array for label, array in leaves(kernel, tuple(arrays)) if uses.get(label, Use()).is_read_again}
        self._launch(wp.launch, call, read, None)
