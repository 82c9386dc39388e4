"""Deployment of a causal decoder: the graphs `prefill` and `step`, or one graph without a state.

`prefill` reads a text, and each `step` one more token. The state of a layer is the inputs `past.LAYER.NUMBER`
of a step, and its new state the outputs `present.LAYER.NUMBER`. A model with a mixer that keeps no state has
the graph `model`, which reads the whole text for each token.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attention.decoding import State
from automl.base.errors import InputError
from automl.base.terminal import tell
from automl.config.runtime import Runtime
from automl.costs.profile import measure_latencies
from automl.task.deployment import MODEL, Deployment, Run
from automl.tasks.language_modelling.gpt import Decoder
from backbones.example import logits

PREFILL, STEP = "prefill", "step"
TOKENS, TOKEN, POSITION, LOGITS = "tokens", "token", "position", "logits"
PAST, PRESENT = "past", "present"
DECODING = "all steps"  # the check of both graphs together
EXAMPLES = 32  # windows in the example of `step`, for its measured speed


class Prefill(nn.Module):
    """Graph that reads the first tokens.

    Shape:
        Tokens, int64 `(N, T)`, to the logits of the next token, `(N, V)`, and the states.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return logits and states."""
        predicted, states = self.decoder.prefill(tokens, last=True)
        return predicted[:, 0], *chain(*states)


class Step(nn.Module):
    """Graph that reads one more token.

    Args:
        decoder: The decoder.
        sizes: Number of tensors in the state of each layer.

    Shape:
        Token int64 `(N, 1)`, number of earlier tokens int64 `(N,)`, of which the first counts, and states; to
        logits `(N, V)` and states.
    """

    def __init__(self, decoder: Decoder, sizes: Sequence[int]) -> None:
        super().__init__()
        self.decoder, self.sizes = decoder, sizes

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return logits and new states."""
        token, position, *rest = inputs
        tensors = iter(rest)
        states: list[State] = [tuple(next(tensors) for _ in range(size)) for size in self.sizes]
        predicted, new = self.decoder.step(token, states, position[0])
        return predicted[:, 0], *chain(*new)


class Whole(nn.Module):
    """Graph of a model without states: tokens, int64 `(N, T)`, to logits `(N, T, V)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each token."""
        y: Tensor = logits(self.model(tokens))
        return y


def language_deployments(
    model: nn.Module, windows: Tensor, *, details: Mapping[str, Any], files: Mapping[str, str]
) -> dict[str, Deployment]:
    """Return the graphs of a trained model: `prefill` and `step`, or `model`.

    `windows` are real ones, int64 `(N, context + 1)`. The example of `step` is their last token. `details`
    has the properties of the tokens, see `automl.export.served_decoder`, and `files` the tokenizer, if any.
    """
    model.eval()
    context = windows.shape[1] - 1
    tokens = {TOKENS: windows.new_zeros(2, max(2, context // 2))}
    common: dict[str, Any] = {"kind": "decoder", "details": details, "files": files}
    if not isinstance(model, Decoder) or (growing := _growing_axes(model, windows)) is None:
        return {
            MODEL: Deployment(
                module=Whole(model),
                inputs=tokens,
                outputs=[LOGITS],
                dynamic={TOKENS: {1: "T"}, LOGITS: {1: "T"}},
                bounds={"T": (1, context)},
                **common,
            )
        }
    with torch.inference_mode():
        _, states = model.prefill(windows[:, :-1])
    past, present = ([f"{kind}.{i}.{j}" for i, j in growing] for kind in (PAST, PRESENT))
    return {
        PREFILL: Deployment(
            module=Prefill(model),
            inputs=tokens,
            outputs=[LOGITS, *present],
            dynamic={TOKENS: {1: "T"}, **_axes(present, growing, "T")},
            bounds={"T": (1, None)},
            **common,
        ),
        STEP: Deployment(
            module=Step(model, [len(state) for state in states]),
            inputs={
                TOKEN: windows[:, -1:],
                POSITION: torch.full_like(windows[:, 0], context),
                **dict(zip(past, chain(*states), strict=True)),
            },
            outputs=[LOGITS, *present],
            dynamic={**_axes(past, growing, "P"), **_axes(present, growing, "P + 1")},
            bounds={"P": (1, None)},
            **common,
        ),
    }


def _growing_axes(model: Decoder, windows: Tensor) -> dict[tuple[int, int], list[int]] | None:
    """Return the axes of each tensor of a state that grow with the text, by layer from 1 and number."""
    # Return None if a module keeps no state.
    try:
        with torch.inference_mode():
            two, three = (model.prefill(windows[:1, :length])[1] for length in (2, 3))
    except InputError:
        return None
    return {
        (layer, number): [axis for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]]
        for layer, states in enumerate(zip(two, three, strict=True), start=1)
        for number, (a, b) in enumerate(zip(*states, strict=True))
    }


def _axes(
    names: Sequence[str], growing: Mapping[tuple[int, int], Sequence[int]], size: str
) -> dict[str, dict[int, str]]:
    return {name: dict.fromkeys(axes, size) for name, axes in zip(names, growing.values(), strict=True)}


def decoding_difference(model: nn.Module, windows: Tensor, runs: Mapping[str, Run]) -> float:
    """Return the largest difference between the logits of the exported graphs and of the whole model.

    `prefill` reads the first half of the windows, int64 `(N, context + 1)`, and `step` the rest.
    """
    with torch.inference_mode():
        expected = logits(model(windows)).cpu().numpy()
    tokens, half = windows.cpu().numpy(), windows.shape[1] // 2
    outputs = runs[PREFILL]({TOKENS: tokens[:, :half]})
    differences = []
    for i in range(half, tokens.shape[1]):
        differences.append(np.abs(outputs[LOGITS] - expected[:, i - 1]).max())
        past = {name.replace(PRESENT, PAST): value for name, value in outputs.items() if name != LOGITS}
        outputs = runs[STEP]({TOKEN: tokens[:, i : i + 1], POSITION: np.full(len(tokens), i), **past})
    differences.append(np.abs(outputs[LOGITS] - expected[:, -1]).max())
    return float(max(differences))


COUNT = 40  # new tokens

TOKENS_ARE = {
    "bytes": "bytes of the text in UTF-8, and {end} at the end of a document",
    "sub-words": "numbers of `tokenizer.json`, and {end} at the end of a document",
    "symbols": "symbols from 0 to {last}",
}
# How the usage makes tokens, and how it shows those that follow.
CODING = {
    "bytes": ('list("The ".encode())', 'bytes(t for t in tokens if t != {end}).decode(errors="replace")'),
    "sub-words": (
        'tokenizer.encode("The ", add_special_tokens=False).ids',
        "tokenizer.decode([t for t in tokens if t != {end}])",
    ),
    "symbols": ("[1, {last}, 0, 1]", "tokens"),
}
_OPEN_TOKENIZER = 'tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")\n'

_STEPS = """\
`prefill.onnx` reads a text. Input `tokens`: int64, shape `(N, T)`, {tokens}.

`step.onnx` reads one more token. Input `token`: int64, shape `(N, 1)`. Input `position`: int64, shape `(N,)`,
the number of tokens before it, which is equal for the whole batch. Inputs `past.LAYER.NUMBER`: the states,
which are the outputs `present.LAYER.NUMBER` of the graph that ran before.

The output `logits` of both, float32 of shape `(N, {vocabulary})`, has a value for each next token. Their
softmax is its probability. The model was trained on {context} tokens at once.

```python
import numpy as np, onnxruntime{imports}

prefill, step = (onnxruntime.InferenceSession(f"{{name}}.onnx") for name in ("prefill", "step"))
names = [each.name for each in step.get_inputs() if each.name.startswith("past")]
{open}tokens = {encoded}
logits, *states = prefill.run(None, {{"tokens": np.array([tokens], np.int64)}})
for position in range(len(tokens), len(tokens) + {count}):
    tokens.append(int(logits[0].argmax()))
    inputs = {{"token": np.array([tokens[-1:]], np.int64), "position": np.array([position], np.int64)}}
    logits, *states = step.run(None, {{**inputs, **dict(zip(names, states))}})
print({decoded})
```
"""

_WHOLE = """\
Input `tokens` of `model.onnx`: int64, shape `(N, T)`, {tokens}.
T is at most {context}. Output `logits`: float32, shape `(N, T, {vocabulary})`. The softmax of the last logits
is the probability of each next token. A layer keeps no state, so each token needs the whole text again.

```python
import numpy as np, onnxruntime{imports}

model = onnxruntime.InferenceSession("model.onnx")
{open}tokens = {encoded}
for _ in range({count}):
    (logits,) = model.run(None, {{"tokens": np.array([tokens], np.int64)}})
    tokens.append(int(logits[0, -1].argmax()))
print({decoded})
```
"""


def language_usage(details: Mapping[str, Any], *, steps: bool) -> str:
    """Return the usage of the graphs. `details` are those of a graph; `steps`: there is a graph `step`."""
    kind = details["tokens"]
    values = {**details, "last": details["vocabulary"] - 1, "count": _count(details)}
    encoded, decoded = (code.format(**values) for code in CODING[kind])
    is_tokenized = kind == "sub-words"
    return (_STEPS if steps else _WHOLE).format(
        **values | {"tokens": TOKENS_ARE[kind].format(**values)},
        encoded=encoded,
        decoded=decoded,
        imports=", tokenizers" if is_tokenized else "",
        open=_OPEN_TOKENIZER if is_tokenized else "",
    )


def language_request(details: Mapping[str, Any]) -> str:
    """Return Python that makes a request to `mlflow-model`."""
    text = f"1 {details['vocabulary'] - 1} 0 1" if details["tokens"] == "symbols" else "The "
    return f'inputs = {{"text": ["{text}"], "tokens": {_count(details)}}}'


def _count(details: Mapping[str, Any]) -> int:
    return 1 if details["tokens"] == "symbols" else min(COUNT, int(details["context"]) // 2)


LENGTHS = (1024, 8192, 32_768)  # tokens before the one that is measured
READ = 2048  # tokens that are read: a state grows by as much for each half of them, unless a window ended it
TIMES = 30  # steps of each decoder
WORK = 2e12  # most multiply-adds of reading the tokens: some seconds on a CPU


def decoding_times(model: Decoder, plain: Decoder, runtime: Runtime) -> Iterator[tuple[int, float, float]]:
    """Yield contexts [tokens] with the time [ms] of one more token, of a model and of the plain one.

    Both step in turn, each as often, on the device of the runtime. Their states repeat those after `READ`
    tokens, since a full layer takes quadratic time to compute them. Nothing is yielded for models that are
    too large for that on this machine.
    """
    if is_too_large(plain, runtime):
        return
    tell("timing a token after long contexts ...")
    decoders = [each.to(runtime.device).eval() for each in (model, plain)]
    with torch.inference_mode():
        states = [[_states(decoder, length) for length in (READ // 2, READ)] for decoder in decoders]
        for length in LENGTHS:
            serves = [
                _step(
                    decoder,
                    [lengthen(old, new, length) for old, new in zip(before, after, strict=True)]
                    if length >= READ
                    else before,
                    length,
                )
                for decoder, (before, after) in zip(decoders, states, strict=True)
            ]
            own, full = measure_latencies(serves, runtime, TIMES)
            yield length, own, full


def is_too_large(decoder: nn.Module, runtime: Runtime) -> bool:
    """Return whether reading `READ` tokens takes too long on this machine."""
    work = READ * sum(p.numel() for p in decoder.parameters())
    return work > WORK * (1 if runtime.device.type == "cpu" else 100)


def _states(decoder: Decoder, length: int) -> list[State]:
    tokens = torch.zeros(1, length, dtype=torch.int64, device=decoder.embedding.weight.device)
    return decoder.prefill(tokens, last=True)[1]


def lengthen(before: State, after: State, length: int) -> State:
    """Return a state after `length` tokens, from those after half of `READ` tokens and after all of them."""

    def repeat(first: Tensor, second: Tensor) -> Tensor:
        grows = [new != old for old, new in zip(first.shape, second.shape, strict=True)]
        return second.repeat([length // READ if is_longer else 1 for is_longer in grows])

    return tuple(map(repeat, before, after))


def _step(decoder: Decoder, states: list[State], length: int) -> Callable[[], object]:
    device = decoder.embedding.weight.device
    token, position = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.tensor(length, device=device)
    return lambda: decoder.step(token, states, position)
