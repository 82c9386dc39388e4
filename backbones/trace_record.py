"""Record of a pass through a model: outputs of submodules, additions, and what depends on what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backbones.flow import Flow


@dataclass(frozen=True)
class Output:
    """Output of a submodule.

    Attributes:
        shape: Shape of the tensor that it is or begins with.
        floating: Whether that tensor is floating-point.
        channels: Dimension of that tensor's channels. None if unknown.
        number: Number of that tensor in the trace's `flow`. None if it does not depend on the input.
        end: Number of tensors in `flow` when the submodule returned.
        length: Length of the tuple or list that begins with the tensor. 0 if the output is the tensor itself.
        uses_rest: Whether the model uses the other elements of that tuple. True if one of them is neither a
            tensor nor None.
    """

    shape: tuple[int, ...]
    floating: bool
    channels: int | None
    number: int | None
    end: int = 0
    length: int = 0
    uses_rest: bool = False

    @property
    def alone(self) -> bool:
        """Return whether the output is the tensor itself and not the first of several."""
        return not self.length


@dataclass(frozen=True)
class Operand:
    """Operand of an addition.

    Attributes:
        makers: Paths of the submodules that returned it, innermost first. If none returned it, those that
            returned the tensor before element-wise functions, such as a scale or an activation.
        depth: Number of layers that it passed.
        shape: Its shape.
    """

    makers: Sequence[str]
    depth: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Addition:
    """Two feature maps that the module at `path` added, blended or subtracted in its own forward.

    Attributes:
        path: Path of the module.
        operands: The two feature maps.
        mixers: Paths of the submodules that mixed positions since the previous addition of the module.
    """

    path: str
    operands: tuple[Operand, Operand]
    mixers: Sequence[str] = ()

    @property
    def branch(self) -> Operand:
        """Return the operand that passed more layers."""
        return max(self.operands, key=lambda operand: operand.depth)

    @property
    def is_residual(self) -> bool:
        """Return whether it joins two maps of one shape that passed different numbers of layers."""
        first, second = self.operands
        return first.shape == second.shape and first.depth != second.depth


@dataclass(frozen=True)
class Trace:
    """Record of a pass, in order of first execution.

    Attributes:
        outputs: Output of each submodule, by path. Submodules whose output does not begin with a tensor are
            absent.
        takes: Shape of the first input tensor of each submodule, by path.
        sources: Path of the submodule that returned the first input tensor of each submodule, by path.
        additions: Additions of feature maps.
        flow: Which tensors were computed from which.
        repeated: Paths of submodules that ran more than once.
        example: Shape of the example's first tensor and dimension of its channels, as in `outputs`.
        class_tokens: Number of leading learned positions, by number of positions of `(B, N, C)`.
        mixed_later: Paths of submodules that returned before the last mixing of positions.
        positions_first: Number of positions T of each module with `batch_first=False` that took `(T, B, C)`,
            by path.
        stopped: Why the pass ended before the model did, since its control flow depends on values. None if it
            did not.
    """

    outputs: Mapping[str, Output]
    takes: Mapping[str, tuple[int, ...]]
    sources: Mapping[str, str]
    additions: Sequence[Addition]
    flow: Flow
    repeated: frozenset[str]
    example: Output
    class_tokens: Mapping[int, int]
    mixed_later: frozenset[str]
    positions_first: Mapping[str, int]
    stopped: str | None
