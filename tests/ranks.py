"""Two processes in one gloo group, which run functions of the test modules side by side."""

from __future__ import annotations

import importlib
import queue
import tempfile
import traceback

import torch
import torch.distributed
import torch.multiprocessing

WAIT = 120


def serve(rank, folder, inbox, outbox):
    """The life of one process: join the group, then run what comes."""
    import warp as wp

    wp.config.log_level = wp.LOG_ERROR
    wp.config.optimization_level = 0
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    while (job := inbox.get()) is not None:
        module, name, arguments = job
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            outbox.put((rank, True, getattr(importlib.import_module(module), name)(rank, *arguments)))
        except BaseException:
            outbox.put((rank, False, traceback.format_exc()))
    torch.distributed.destroy_process_group()


def mesh_of(*shape):
    """A device mesh of the two, of one dimension by default."""
    from torch.distributed.tensor import init_device_mesh

    return init_device_mesh("cpu", shape or (2,))


class Ranks:
    """A pair of processes; a new one after a failure, which may leave them waiting for each other."""

    def __init__(self):
        self._processes = []

    def _start(self):
        self._folder = tempfile.TemporaryDirectory()
        context = torch.multiprocessing.get_context("spawn")
        self._outbox = context.Queue()
        self._inboxes = [context.Queue() for _ in range(2)]
        self._processes = [
            context.Process(target=serve, args=(rank, self._folder.name, inbox, self._outbox), daemon=True)
            for rank, inbox in enumerate(self._inboxes)
        ]
        for process in self._processes:
            process.start()

    def run(self, function, *arguments):
        """``function(rank, *arguments)`` in both; their results, by rank."""
        if not self._processes:
            self._start()
        for inbox in self._inboxes:
            inbox.put((function.__module__, function.__name__, arguments))
        found = {}
        try:
            for _ in self._processes:
                rank, right, result = self._outbox.get(timeout=WAIT)
                if not right:
                    raise AssertionError(f"rank {rank}: {result}")
                found[rank] = result
        except queue.Empty:
            codes = [p.exitcode for p in self._processes]
            self.stop(kill=True)
            raise AssertionError(f"no answer; exit codes {codes}") from None
        except AssertionError:
            self.stop(kill=True)
            raise
        return [found[rank] for rank in range(2)]

    def stop(self, kill=False):
        for process, inbox in zip(self._processes, self._inboxes if self._processes else (), strict=False):
            process.kill() if kill else inbox.put(None)
        for process in self._processes:
            process.join(WAIT)
        if self._processes:
            self._folder.cleanup()
        self._processes = []
