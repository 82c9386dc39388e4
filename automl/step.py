"""One training step, and the ways to run it.

`off`: operation by operation.
`graphs`: the whole step (forward, backward, optimiser) is captured once as a CUDA graph and replayed, so a
    small model no longer waits for launches. The first steps run as usual, which also warms the libraries up.
`inductor`: the forward pass is compiled.

`auto` asks what pays for a search, where every architecture is new. Capturing costs about as much as
one step, so `graphs` is taken on a GPU for everything that runs more than a few dozen steps, except where it
cannot work: float16 (the scaler decides on the CPU whether to step) and several workers. Inductor is never
taken by itself: see `docs/decisions/0004-compilation.md` for its start-up against its gain.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from automl.runtime import Runtime, log
from automl.tasks.base import Task

Way = Literal["off", "graphs", "inductor"]

WARM_UP = 3  # steps before a capture
PAYS = 50  # steps of a training from which a capture is worth its time


def choose(runtime: Runtime, steps: int) -> Way:
    """The way to run a training of `steps` steps."""
    possible = runtime.device.type == "cuda" and runtime.dtype != torch.float16 and runtime.workers == 1
    if runtime.compile == "auto":
        return "graphs" if possible and steps >= PAYS else "off"
    if runtime.compile == "graphs" and not possible:
        log.warning(
            "CUDA graphs need a GPU, one worker and another precision than fp16; running step by step"
        )
        return "off"
    return runtime.compile


def make_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> "Step":
    """A step for the rest of the training of `model`."""
    runtime = task.runtime
    way = choose(runtime, task.config.training.epochs * task.steps())
    if runtime.workers > 1:
        # Buffers need no broadcast: synchronised norms compute the same on every worker.
        model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[runtime.device] if runtime.device.type == "cuda" else None,
            broadcast_buffers=False,
        )
    if way == "inductor":
        model.compile()
    return (GraphedStep if way == "graphs" else Step)(task, model, optimizer, scaler)


class Step:
    """Runs `task.loss`, its gradients and the optimiser on one batch.

    forward: what computes the model's output, the model itself or a wrapper of it.
    """

    def __init__(
        self,
        task: Task,
        forward: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.task, self.forward, self.optimizer, self.scaler = task, forward, optimizer, scaler

    def __call__(self, batch: Any, rate: float) -> Tensor:
        """Takes one step at the learning rate `rate` and returns the loss, still on the device."""
        for group in self.optimizer.param_groups:
            _set(group, rate)
        return self._run(batch)

    def _run(self, batch: Any) -> Tensor:
        with self.task.runtime.autocast():
            loss = self.task.loss(self.forward, batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class GraphedStep(Step):
    """The same, captured after a few steps and replayed from then on, with static input buffers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(self.task.runtime.device)
        for group in self.optimizer.param_groups:
            # A replay reads what lies in memory, so the rate must lie there too.
            group["lr"] = torch.tensor(float(group["lr"]), device=self.task.runtime.device)
            if "capturable" in group:
                group["capturable"] = True

    def _run(self, batch: tuple[Tensor, ...]) -> Tensor:
        self.seen += 1
        if self.seen <= WARM_UP:
            # Off the default stream, as a capture demands of everything that it will reuse.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                loss = super()._run(batch)
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        if self.graph is None:
            self.inputs = tuple(tensor.clone() for tensor in batch)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.loss = super()._run(self.inputs)
        else:
            for buffer, tensor in zip(self.inputs, batch, strict=True):
                buffer.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.loss


def _set(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
