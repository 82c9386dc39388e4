"""Signals of which layers of a trained decoder need full attention, measured before any placement is trained.

Each layer gets its own mixer and one of each other type, which take over its projections. A signal is the
harm of a type at a layer:

- `sensitivity`: the loss with this layer replaced, minus that of the original;
- `greedy`: the same, while layers are replaced one after the other, always the one with the least loss
  (as in arXiv 2606.27791);
- `gates`: how much a gate of the layer prefers its own mixer, in logits. All gates learn together, with the
  new mixers, to predict what the original does, while the number of full layers is pressed to that of the
  search (as in arXiv 2606.30562). The weights of the original stay.

Departures: a gate chooses among all types at once by a softmax, and the press is the squared excess.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attention import Spec
from automl.config.device import is_gpu
from automl.tasks.language_modelling.score import divergence
from backbones import insert, sites
from backbones.example import feature_map, logits, with_feature_map
from backbones.take_over import take_over

if TYPE_CHECKING:
    from automl.tasks.language_modelling.task import LanguageModelling

Harm = list[dict[str, float]]  # of each type, by layer

STEPS = 200  # of the gates
GATE_RATE, MIXER_RATE = 0.05, 5e-4  # learning rates
PRICE = 0.1  # of a squared full layer too many, in nats, at the end of the steps
WINDOWS, LEAST = 32, 4  # most and fewest windows of the validation split
WORK = {False: 1e13, True: 1e15}  # multiply-adds on a CPU and on a GPU: some minutes


class MixerChoice(nn.Module):
    """Mixers of a layer: one of them, or the sum of all, weighted by the softmax of `gates`.

    Args:
        mixers: The modules, that of the decoder first. They have the same arguments and outputs.
    """

    def __init__(self, mixers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)
        self.gates = nn.Parameter(torch.zeros(len(mixers)))
        self.chosen: int | None = 0  # None for the sum

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the chosen mixer, or the first one's with the weighted sum in it."""
        if self.chosen is not None:
            return self.mixers[self.chosen](*args, **kwargs)
        outputs = [mixer(*args, **kwargs) for mixer in self.mixers]
        weighted = (
            w * feature_map(y) for w, y in zip(self.gates.softmax(0), outputs, strict=True)
        )  # each (B, N, C)
        return with_feature_map(outputs[0], sum(weighted, start=torch.zeros(())))


def with_choices(task: "LanguageModelling", specs: Mapping[str, Spec]) -> tuple[nn.Module, list[MixerChoice]]:
    """Return a copy of the original decoder whose layers can choose among mixers, and the choices.

    Args:
        task: The task, whose decoder has trained weights.
        specs: The other mixers by name.
    """
    original, example = task.original, torch.zeros(2, task.data.context, dtype=torch.int64)
    known = sites(original, example)
    layers = [site for site in known if site.replaces]
    model, others = copy.deepcopy(original), []
    for spec in specs.values():
        replaced = insert(copy.deepcopy(original), {site.name: spec for site in layers}, example, known=known)
        take_over(replaced, original)
        others.append(replaced)
    choices = []
    for site in layers:
        choices.append(MixerChoice([m.get_submodule(site.path) for m in (model, *others)]))
        model.set_submodule(site.path, choices[-1])
    return model.to(task.runtime.device), choices


def measure_signal(
    task: "LanguageModelling", signal: str, specs: Mapping[str, Spec], full: int, *, steps: int = STEPS
) -> Harm:
    """Return the harm of each type at each layer.

    Args:
        task: The task, whose decoder has trained weights.
        signal: `sensitivity`, `greedy` or `gates`.
        specs: The mixers to choose from by name.
        full: The number of full layers, to which the gates are pressed.
        steps: The number of training steps of the gates.
    """
    model, choices = with_choices(task, specs)
    if signal == "gates":
        return train_gates(task, model, choices, list(specs), full, steps)

    evaluations = len(specs) * len(choices) * (len(choices) / 2 if signal == "greedy" else 1)
    work = sum(p.numel() for p in task.original.parameters()) * task.data.context * evaluations
    windows = max(LEAST, min(WINDOWS, int(WORK[is_gpu(task.runtime.device)] // work)))

    def loss() -> float:
        return score(task, model, windows)["loss"]

    search = _replace_greedily if signal == "greedy" else _replace_each
    return search(choices, list(specs), loss)


def score(task: "LanguageModelling", model: nn.Module, windows: int) -> dict[str, float]:
    """Return the metrics of up to `windows` windows that are spread over the validation split."""
    windows = min(windows, task.size("validation"))
    rows = torch.arange(windows) * task.size("validation") // windows
    evaluator, model = task.evaluator("validation"), model.to(task.runtime.device).eval()
    with torch.inference_mode():  # in float32, since differences between layers are small
        for index in rows.split(task.training.batch_size):
            tokens, targets = task.batch("validation", index)
            evaluator.update(model(tokens), targets)
    return {name: value.item() for name, value in evaluator.compute(task.runtime).items()}


def _replace_each(choices: Sequence[MixerChoice], names: Sequence[str], loss: Callable[[], float]) -> Harm:
    before = loss()
    return [
        {name: value - before for name, value in zip(names, replace_layer(choice, loss), strict=True)}
        for choice in choices
    ]


def _replace_greedily(
    choices: Sequence[MixerChoice], names: Sequence[str], loss: Callable[[], float]
) -> Harm:
    before, left = loss(), list(range(len(choices)))
    harm: Harm = [{} for _ in choices]
    while left:
        losses = {layer: replace_layer(choices[layer], loss) for layer in left}
        layer = min(left, key=lambda i: min(losses[i]))
        harm[layer] = {name: value - before for name, value in zip(names, losses[layer], strict=True)}
        before = min(losses[layer])
        choices[layer].chosen = losses[layer].index(before) + 1
        left.remove(layer)
        done = f"{len(choices) - len(left)} of {len(choices)} layers replaced"
        print(f"greedy    {done}, the last one {layer + 1}: loss {before:.3f}", file=sys.stderr)
    return harm


def replace_layer(choice: MixerChoice, measure: Callable[[], float]) -> list[float]:
    """Return what `measure` returns with each other mixer of a layer in turn. The layer stays as it was."""
    values = []
    for index in range(1, len(choice.mixers)):
        choice.chosen = index
        values.append(measure())
    choice.chosen = 0
    return values


def train_gates(
    task: "LanguageModelling",
    model: nn.Module,
    choices: Sequence[MixerChoice],
    names: Sequence[str],
    full: int,
    steps: int,
) -> Harm:
    """Train the gates and the new mixers. Return how much each gate prefers the decoder's own mixer."""
    model.requires_grad_(requires_grad=False).eval()
    gates = [choice.gates.requires_grad_() for choice in choices]
    mixers = nn.ModuleList(chain.from_iterable(choice.mixers[1:] for choice in choices))
    mixers.requires_grad_().train()
    optimiser = torch.optim.AdamW(
        [{"params": gates, "lr": GATE_RATE}, {"params": mixers.parameters(), "lr": MIXER_RATE}],
        weight_decay=0.0,
    )
    for step, (tokens, targets) in enumerate(islice(_batches(task), steps), start=1):
        for choice in choices:
            choice.chosen = 0
        with torch.no_grad():
            taught = logits(model(tokens))
        for choice in choices:
            choice.chosen = None
        excess = torch.stack([gate.softmax(0)[0] for gate in gates]).sum() - full
        press = PRICE * step / steps * excess.relu().square()
        loss = divergence(logits(model(tokens)), taught, targets) + press
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            left = excess.item() + full
            print(
                f"gates     step {step} of {steps}: {left:.1f} full layers, loss {loss:.3f}", file=sys.stderr
            )
    values = [gate.tolist() for gate in gates]
    return [{name: own - other for name, other in zip(names, others, strict=True)} for own, *others in values]


def _batches(task: "LanguageModelling") -> Iterator[tuple[Tensor, Tensor]]:
    """Yield training batches of one epoch after the other."""
    epoch = 0
    while True:
        yield from task.batches(epoch)
        epoch += 1
