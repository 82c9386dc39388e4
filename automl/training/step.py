"""One training step, and the ways to run it.

`off`: operation by operation.
`graphs`: the whole step (forward, backward, optimiser) is captured once as a CUDA graph and replayed, so a
    small model no longer waits for launches. The first steps run as usual, which also warms the libraries up;
    the last of these are then replayed from the same state, and what differs is not trusted.
`inductor`: the forward pass is compiled.

`auto` asks what pays for a search, where every architecture is new. Capturing costs about as much as
one step, so `graphs` is taken for everything that runs more than a few dozen steps, on GPUs on which it was
measured to be right and faster (`automl.training.graphs`), except where it cannot work: float16 (the scaler
decides on the CPU whether to step), several workers, batches of different shapes, and gradients of several
batches. Inductor is never taken
by itself: see `docs/decisions/0004-compilation.md` for its start-up against its gain.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from automl.config.device import CudaGraphs, has_graphs, is_gpu, is_out_of_memory
from automl.config.runtime import Runtime, log
from automl.tasks.base import Batch, Task
from automl.training.graphs import Capture, Run, Snapshot, disagreement, pays
from backbones.torch_internals import tree_map

Way = Literal["off", "graphs", "inductor"]

WARM_UP = 6  # steps before a capture
CHECKED = 3  # the last of these, which its replays must repeat
PAYS = 50  # steps of a training from which a capture is worth its time


def choose(runtime: Runtime, steps: int, *, shapes_vary: bool = False, accumulate: int = 1) -> Way:
    """The way to run a training of `steps` steps.

    shapes_vary: as a task has it. accumulate: as the configuration has it.
    """
    possible = has_graphs(runtime.device) and runtime.dtype != torch.float16 and runtime.workers == 1
    possible = possible and not shapes_vary and accumulate == 1
    if runtime.compile == "auto":
        return "graphs" if possible and steps >= PAYS and pays(runtime.device) else "off"
    if runtime.compile == "graphs" and not possible:
        log.warning(
            "CUDA graphs need a GPU, one worker, another precision than fp16, batches of one shape and no "
            "accumulated gradients; running step by step"
        )
        return "off"
    return runtime.compile


def make_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> "Step":
    """A step for the rest of the training of `model`."""
    runtime, training = task.runtime, task.config.training
    way = choose(
        runtime,
        training.epochs * task.steps(),
        shapes_vary=task.shapes_vary,
        accumulate=training.accumulate,
    )
    if runtime.workers > 1:
        # Buffers need no broadcast: synchronised norms compute the same on every worker.
        model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[runtime.device] if is_gpu(runtime.device) else None,
            broadcast_buffers=False,
        )
    if way == "inductor":
        model.compile()
    return (GraphedStep if way == "graphs" else Step)(task, model, optimizer, scaler)


class Step:
    """Runs `task.learn`, its gradients and the optimiser on one batch.

    forward: what computes the model's output, the model itself or a wrapper of it.
    waiting: batches whose gradients are there and have not been used.
    """

    def __init__(
        self,
        task: Task,
        forward: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.task, self.forward, self.optimizer, self.scaler = task, forward, optimizer, scaler
        self.waiting = 0

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        """Takes one step at the learning rate `rate` and returns what `Task.learn` does, still on the device.

        Of batches whose gradients are accumulated the last one takes it, or `finish`.
        """
        for group in self.optimizer.param_groups:
            _set(group, rate)
        return self._run(batch)

    def _run(self, batch: Batch) -> Tensor:
        with self.task.runtime.autocast():
            values = self.learn(batch)
        self.scaler.scale(values[..., 0].sum()).backward()
        self.waiting += 1
        if self.waiting == self.task.config.training.accumulate:
            self.finish()
        return values.detach()

    def learn(self, batch: Batch) -> Tensor:
        """What `Task.learn` returns, `(values,)`, or `(trainings, values)` of several that step together."""
        return self.task.learn(self.forward, batch)

    def parameters(self) -> list[nn.Parameter]:
        return list(self.forward.parameters())

    def clip(self, most: float) -> None:
        """Bring gradients that are longer than `most` to that length."""
        nn.utils.clip_grad_norm_(self.parameters(), most)

    def finish(self) -> None:
        """Takes the step of all batches that wait for one."""
        if not self.waiting:
            return
        training = self.task.config.training
        if self.waiting > 1 or training.clip:
            self.scaler.unscale_(self.optimizer)
        if self.waiting > 1:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.waiting)
        if training.clip:
            self.clip(training.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.waiting = 0


class GraphedStep(Step):
    """The same, captured after a few steps and replayed from then on if the replays are right.

    replay: the captured step, once it is trusted.
    """

    def __init__(self, *args: Any, graphs: Capture | None = None) -> None:
        super().__init__(*args)
        device = self.task.runtime.device
        self.graphs = CudaGraphs(device) if graphs is None else graphs
        self.replay: Run | None = None
        self.seen = 0
        self.begin: Snapshot | None = None  # before the steps that are to be repeated
        self.done: list[tuple[Batch, float, Tensor]] = []  # these: batch, rate and values
        for group in self.optimizer.param_groups:
            # A replay reads what lies in memory, so the rate must lie there too.
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            if "capturable" in group:
                group["capturable"] = True

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        self.seen += 1
        if self.seen <= WARM_UP:
            return self._rehearse(batch, rate)
        if self.seen == WARM_UP + 1:
            self._capture(batch)
        return super().__call__(batch, rate)

    def _run(self, batch: Batch) -> Tensor:
        return super()._run(batch) if self.replay is None else self.replay(batch)

    def _rehearse(self, batch: Batch, rate: float) -> Tensor:
        if self.seen == WARM_UP - CHECKED + 1:
            self.begin = self._snapshot()
        with self.graphs.aside():
            values = super().__call__(batch, rate)
        if self.begin is not None:
            self.done.append((tree_map(torch.clone, batch), rate, values))
        return values

    def _capture(self, batch: Batch) -> None:
        """Sets `replay` if that does what the last steps did; the training's state stays as it is."""
        assert self.begin is not None
        end = self._snapshot()
        losses = [values[0].item() for *_, values in self.done]
        try:
            self.replay = self.graphs.capture(super()._run, batch)
            self.begin.restore()
            replayed = [Step.__call__(self, batch, rate)[0].item() for batch, rate, _ in self.done]
            wrong = disagreement(self.begin, end, self._snapshot(), losses, replayed)
        except (RuntimeError, ValueError) as error:  # a step that cannot be captured or set back
            if is_out_of_memory(error):
                raise
            wrong = f"{type(error).__name__}: {error}".splitlines()[0]
        if wrong:
            log.warning("the captured step is not trusted, so training runs step by step: %s", wrong)
            self.replay = None
            self.optimizer.zero_grad(set_to_none=True)
        end.restore()
        self.begin, self.done = None, []

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.forward, self.optimizer, self.task.runtime.device)


def _set(group: dict[str, Any], rate: float) -> None:
    rate *= group.get("lr_scale", 1.0)
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
