"""Usage of an exported decoder, for its model card: a continuation by the most probable tokens."""

from collections.abc import Mapping
from typing import Any

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
