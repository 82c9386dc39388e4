"""Time of one more token after thousands: a decoder beside the same decoder with full layers alone."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attention.decoding import State
from automl.config.runtime import Runtime
from automl.costs.profile import measure_latencies
from automl.tasks.language_modelling.gpt import Decoder

LENGTHS = (8192, 32_768)  # tokens before the one that is measured
READ = 2048  # tokens that are read: a state grows by as much for each half of them, unless a window ended it
TIMES = 30  # steps of each decoder
WORK = 2e12  # most multiply-adds of reading the tokens: some seconds on a CPU


def decoding_times(model: Decoder, plain: Decoder, runtime: Runtime) -> Iterator[tuple[int, float, float]]:
    """Yield contexts [tokens] with the time [ms] of one more token, of a model and of full layers alone.

    Both step in turn, each as often, on the device of the runtime. Their states repeat those after `READ`
    tokens, since a full layer takes quadratic time to compute them. Nothing is yielded for models that are
    too large for that on this machine.

    Args:
        model: The decoder.
        plain: The same decoder with its own mixers.
        runtime: The device.
    """
    width, params = model.embedding.weight.shape[1], sum(p.numel() for p in plain.parameters())
    if READ * params + len(plain.layers) * width * READ**2 > WORK * (
        1 if runtime.device.type == "cpu" else 100
    ):
        return
    decoders = [each.to(runtime.device).eval() for each in (model, plain)]
    with torch.inference_mode():
        states = [[_states(decoder, length) for length in (READ // 2, READ)] for decoder in decoders]
        for length in LENGTHS:
            serves = [
                _step(
                    decoder,
                    [lengthen(old, new, length) for old, new in zip(before, after, strict=True)],
                    length,
                )
                for decoder, (before, after) in zip(decoders, states, strict=True)
            ]
            own, full = measure_latencies(serves, runtime, TIMES)
            yield length, own, full


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
