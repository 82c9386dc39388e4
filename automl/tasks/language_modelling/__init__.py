"""Language modelling: a causal decoder predicts the next token of a text, or of sequences of recall.

data          Text for language models, and sequences of associative recall
deploy        Deployment of a causal decoder: its graphs, with a state or without, their usage and its speed
gpt           A decoder for causal language models, from tokens to logits; sizes of decoders
hugging_face  Causal language models of Hugging Face, from a local folder or by name: `hf:FOLDER`, `hf:NAME`
model         The causal language models: the built-in decoder, and those of Hugging Face by the prefix `hf:`
score         Metrics of predicted tokens, over batches and workers
space         Spaces of hybrid decoders: the mixer of each layer
task          Language modelling: a causal decoder predicts the next token
transformers_folder  A trained decoder in the format of transformers
transformers_layers  Layers of transformers that compute what mixers of decoders compute
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from automl.base.errors import InputError
from search.config.sections import PUBLISHED, Data, Model, Training
from search.config.tasks import TaskSpec
from search.metric import Metric

if TYPE_CHECKING:
    from automl.tasks.language_modelling.gpt import DecoderShape  # imports torch, which takes seconds

TextSource = Literal["recall", "text"]

FULL = "full"  # kind of a layer that keeps its own mixer
VALUE = 4  # bytes of a value that is kept while decoding: float32, as in an exported model
MIXER = re.compile(r"block(\d{1,6})\.mixer")  # the site of a layer
BYTES = 257  # tokens of a text without a tokenizer: the bytes, and the end of a document
MAX_VOCABULARY = 2**20

NATS = Metric(name="loss", maximize=False, unit="nats", margin=0.01)  # cross-entropy of a token
BITS_PER_BYTE = Metric(name="bits_per_byte", maximize=False, unit="bits", margin=0.005)
TOKEN_ACCURACY = Metric(name="accuracy", maximize=True, scale=100.0, unit="%", gap="points")
# Recall of planted facts, and the length of the sequences in lengths of the training.
NEEDLES = {f"needle@{factor}x": factor for factor in (1, 2, 4, 8)}
LANGUAGE = (  # the default first
    NATS,
    BITS_PER_BYTE,
    TOKEN_ACCURACY,
    *(Metric(name=name, maximize=True, scale=100.0, unit="%", gap="points") for name in NEEDLES),
)


def site_name(layer: int) -> str:
    """Return the site of a layer's mixer. Layers count from 0."""
    return f"block{layer + 1}.mixer"


@dataclass(frozen=True, kw_only=True)
class LanguageData(Data):
    """Sequences of tokens: a text, or generated sequences of associative recall.

    Attributes:
        source: `text` for files, `recall` for generated sequences.
        context: The number of tokens that a prediction is based on at most.
        vocabulary: For a text, the size of the tokenizer that is trained on the training split; 0 takes
            bytes as tokens. For recall, the number of symbols.
        pairs: For recall, the number of keys with a value.
        gap: For recall, the largest number of fillers between a key and its value.
        examples: For recall, the number of training sequences.
        decoding: The number of tokens at which the cost of decoding is measured. 0 takes `context`.
        tokenizer: For a text, the path of a `tokenizer.json`, which is then not trained.
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {"size": "context", "context": "decoding"}

    source: TextSource = "text"
    context: int = 256
    vocabulary: int = 0
    pairs: int = 4
    gap: int = 0
    examples: int = 19_200
    decoding: int = 0
    tokenizer: str = ""

    @property
    def decoding_context(self) -> int:
        """Return the number of tokens at which the cost of decoding counts."""
        return self.decoding or self.context

    def problems(self) -> Iterator[str]:
        if not 2 <= self.context <= 2**20:
            yield f"data.context must lie between 2 and 1,048,576 tokens; got {self.context}"
        if self.decoding and not 2 <= self.decoding <= 2**30:
            yield f"data.decoding, --context, must be at least 2 tokens; got {self.decoding}"
        if self.tokenizer and (self.vocabulary or self.source == "recall"):
            yield "data.tokenizer has a vocabulary of its own; leave --vocabulary and the data recall out"
        if self.source == "recall" and self.path is not None:
            yield "data.path: sequences of recall are generated; leave --data out, or take --space hybrid"
        if self.source == "recall":
            yield from self._recall_problems()
        elif self.vocabulary and not BYTES < self.vocabulary <= MAX_VOCABULARY:
            yield (
                f"data.vocabulary must be 0 for bytes, or lie between {BYTES + 1} and {MAX_VOCABULARY:,}, "
                f"since sub-words are made of bytes; got {self.vocabulary}"
            )
        yield from super().problems()

    def _recall_problems(self) -> Iterator[str]:
        for name, least in (("pairs", 1), ("gap", 0), ("examples", 1)):
            if (value := getattr(self, name)) < least:
                yield f"data.{name} must be {least} or more; got {value}"
        if not 2 * self.pairs < self.vocabulary <= MAX_VOCABULARY:
            yield (
                f"data.vocabulary must lie between {2 * self.pairs + 1} and {MAX_VOCABULARY:,}, since half "
                f"of the symbols are keys and data.pairs={self.pairs} needs as many; got {self.vocabulary}"
            )
        if self.context + 1 < (length := self.pairs * (4 + self.gap)):
            yield (
                f"data.context must be {length - 1} or more, since data.pairs={self.pairs} with "
                f"data.gap={self.gap} takes {length} tokens; got {self.context}"
            )


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Model):
    """A causal decoder, and the mixers that replace those of some layers.

    `backbone` is a name in `DECODERS` in `model`, such as `gpt`, or `hf:FOLDER` or `hf:NAME` for a model of
    Hugging Face.
    """

    backbone: str = "gpt"
    own_layer: ClassVar[str] = FULL

    def misuses(self) -> Iterator[str]:
        from automl.tasks.language_modelling.model import check_decoder, find_decoder  # imports torch

        try:
            check_decoder(self.backbone, self.options)
            if self.weights == PUBLISHED and find_decoder(self.backbone).published is None:
                yield (
                    f"model.weights: decoder {self.backbone!r} has no weights of its own; choose hf:FOLDER "
                    f"with weights, or name a file"
                )
        except InputError as error:
            yield str(error)

    @property
    def kinds(self) -> list[str]:
        """Return the kind of each layer: an attention type, or `full` for a layer with its own mixer."""
        sites = map(site_name, range(self.depth))
        return [self.placement[site].name if site in self.placement else FULL for site in sites]

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return int(self._size("depth"))

    @property
    def heads(self) -> int:
        """Return the number of heads of a layer."""
        return int(self._size("heads"))

    @property
    def width(self) -> int:
        """Return the number of channels."""
        return int(self._size("width"))

    def check_local(self) -> None:
        from automl.tasks.language_modelling import hugging_face  # imports torch, which takes seconds

        if self.backbone.startswith(hugging_face.PREFIX):
            hugging_face.check_local(self.backbone.removeprefix(hugging_face.PREFIX))

    def cache_bytes(self, context: int) -> int:
        """Return the bytes of the keys, values and states of all layers."""
        from attention.attention_type import find_attention  # imports torch, which takes seconds

        values = (self.depth - len(self.placement)) * context * self.shape.cache
        for spec in self.placement.values():
            state = find_attention(spec.type).state
            if state is None:
                raise InputError(
                    f"--max-cache needs the state of attention {spec.name}, which has none; leave it out"
                )
            values += state(self.width, context, **spec.options)
        return VALUE * values

    def placement_name(self, *, options: bool = True) -> str:
        """Return the kinds of a decoder's layers, with the options of each type in brackets at the end.

        The number of layers of a library's decoder is in its files, which may not be here. So the replaced
        layers are named by their numbers: `linear @ 1-3, 5-7`.
        """
        if ":" not in self.backbone:
            runs = [(kind, len(list(layers))) for kind, layers in groupby(self.kinds)]
            name = ", ".join(f"{kind} x {count}" if count > 1 else kind for kind, count in runs)
        else:
            layers_of: dict[str, list[int]] = {}
            for site, spec in self.placement.items():
                if match := MIXER.fullmatch(site):
                    layers_of.setdefault(spec.name, []).append(int(match[1]))
            name = " + ".join(f"{kind} @ {_ranges(layers)}" for kind, layers in layers_of.items()) or FULL
        specs = {str(spec): None for spec in self.placement.values()}
        return f"{name} [{', '.join(specs)}]" if options and specs else name

    @property
    def shape(self) -> "DecoderShape":
        """Return the sizes of the layers."""
        from automl.tasks.language_modelling.model import shape_of  # imports torch, which takes seconds

        return shape_of(self.backbone, self.options)

    def _size(self, name: str) -> Any:
        return self.options[name] if name in self.options else getattr(self.shape, name)


@dataclass(frozen=True, kw_only=True)
class LanguageTraining(Training):
    """Training to predict the next token, by cross-entropy.

    Attributes:
        distil: The weight of the divergence from the predictions of the model without a placement, which has
            the initial weights. The cross-entropy has the remaining weight. 0 is off.
    """

    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0
    distil: float = 0.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not (isfinite(self.distil) and 0 <= self.distil <= 1):
            yield f"training.distil must lie between 0 and 1; got {self.distil}"


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: `1-3, 5`."""
    groups = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


SPEC = TaskSpec(
    order=60,
    data=LanguageData,
    model=LanguageModel,
    training=LanguageTraining,
    metrics=LANGUAGE,
    task="automl.tasks.language_modelling.task:LanguageModelling",
    spaces=("automl.tasks.language_modelling.space",),
    detect="automl.tasks.language_modelling.data:is_text",
    guesses=True,
    space="hybrid",
    overview="automl.tasks.language_modelling.data.windows:summarise_text",
    models="automl.tasks.language_modelling.model:DECODERS",
    subject="automl.tasks.language_modelling.model:subject",
)

__all__ = ["LANGUAGE", "SPEC", "LanguageData", "LanguageModel", "LanguageTraining"]
