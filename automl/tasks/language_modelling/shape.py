"""The sizes of a decoder's layers, on which the mixers that replace theirs depend."""

from dataclasses import dataclass

from attention.position import Encoding


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of the layers of a causal language model.

    Attributes:
        depth: Number of layers.
        width: Number of channels between layers.
        heads: Number of query heads.
        cache: Number of values that a layer with its own attention keeps of each token while decoding.
        encoding: Position encoding of queries and keys: `rotary`, or `none` if tokens are embedded with their
            positions.
        base: Base of rotary encoding, if it is not the default.
        context: Maximum number of tokens of a model that has a limit.
        vocabulary: Number of tokens of a model that has its own. None: that of the data.
    """

    depth: int
    width: int
    heads: int
    cache: int
    encoding: Encoding
    base: float | None = None
    context: int | None = None
    vocabulary: int | None = None
