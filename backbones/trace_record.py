"""The record of a pass through a model: outputs of submodules, additions, and the flow of its data.

`Flow` answers two questions about the outputs of submodules. Does one become another only through norms and
activations, so that both are one feature map? Does one carry logits: is it an output of the model that a
convolution or linear layer computed last?
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from backbones.channels import ADDITIONS, CONVOLUTIONS, PERMUTATIONS, PRODUCTS, RESHAPES
from backbones.torch_internals import version

_SUMS = ADDITIONS | {"sub", "sub_", "__sub__", "__rsub__", "__isub__"}
_SCALES = frozenset(
    {
        *("mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "neg", "__neg__"),
        *("tanh", "tanh_", "sigmoid", "sigmoid_", "clamp", "clamp_"),
        *("contiguous", "clone", "to", "float", "type_as", "masked_fill"),
    }
)
# Functions whose result still belongs to the submodule before them.
ELEMENTWISE = _SCALES | {
    *("relu", "relu_", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "prelu"),
    *("hardswish", "hardsigmoid", "hardtanh", "softplus"),
    *("dropout", "dropout_", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"),
}
# Functions of norms and activations, also of those that are composed.
_CHAIN = frozenset(ELEMENTWISE | PERMUTATIONS | RESHAPES | _SUMS) | {
    *("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"),
    *("mean", "var", "pow", "__pow__", "square", "sqrt", "rsqrt", "exp"),
    *("rrelu", "leaky_relu_", "elu_", "selu_", "hardtanh_", "threshold", "softsign", "logsigmoid"),
    *("alpha_dropout", "feature_alpha_dropout"),
}
# Functions that rearrange, resize or rescale logits.
_REARRANGEMENTS = frozenset(_SCALES | PERMUTATIONS | RESHAPES) | {
    *("cat", "concat", "concatenate", "stack", "chunk", "split", "tensor_split", "unbind", "narrow"),
    *("select", "index_select", "__getitem__", "__setitem__", "flip", "pad"),
    *("interpolate", "upsample", "pixel_shuffle", "softmax", "log_softmax", "exp", "argmax"),
}


@dataclass
class _Node:
    """Tensor in the graph.

    Attributes:
        sources: Numbers of the tensors that it was computed from.
        root: Number of the tensor before norms and activations.
        rearranges: Whether it has the values of its sources, rearranged or rescaled.
        projects: Whether a convolution or linear layer computed it, with another number of channels.
        users: Numbers of the tensors that were computed from it.
    """

    sources: list[int]
    root: int
    rearranges: bool
    projects: bool
    users: list[int] = field(default_factory=list)


class Flow:
    """Graph of the tensors of a pass that depend on its inputs, numbered in the order in which they appear.

    A tensor that is changed in place gets a new number. Tensors are identified by `id`, so they must live as
    long as this object.
    """

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._numbers: dict[int, tuple[int, int]] = {}  # With the tensor's version at that time.
        self._outputs: set[int] = set()

    def number(self, tensor: Tensor) -> int | None:
        """Return the tensor's number, or None if it does not depend on an input."""
        return self._numbers[id(tensor)][0] if id(tensor) in self._numbers else None

    def start(self, tensors: Iterable[Tensor]) -> None:
        """Add inputs of the model."""
        for tensor in tensors:
            self._add("", [], tensor)

    def end(self, tensors: Iterable[Tensor]) -> None:
        """Mark the outputs of the model."""
        self._outputs.update(self._numbers_of(tensors))

    def follow(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Add the outputs of the function called `name`, unless they are unchanged inputs."""
        for output in inputs[:1] if name == "__setitem__" else outputs:
            known = self._numbers.get(id(output))
            if self._numbers_of(inputs) and (known is None or known[1] != version(output)):
                self._add(name, inputs, output)

    def pass_through(self, source: Tensor, target: Tensor) -> None:
        """Treat `target`, the output of an inserted module, as its input."""
        if id(source) in self._numbers:
            self._numbers[id(target)] = self._numbers[id(source)][0], version(target)

    def __len__(self) -> int:
        return len(self._nodes)

    def is_continued(self, earlier: int, later: int, end: int) -> bool:
        """Return whether the tensor `earlier` is used only for `later`, through norms and activations.

        A submodule returned `later`. `end` is the number of tensors when it returned. Before that, the
        submodule may have used `later` itself.
        """
        root, waiting, reached = self._nodes[later].root, [earlier], set[int]()
        while waiting:
            number = waiting.pop()
            reached.add(number)
            if number != later:
                if number in self._outputs or self._nodes[number].root != root:
                    return False
                waiting += [user for user in self._nodes[number].users if user not in reached]
        return later in reached and all(user >= end for user in self._nodes[later].users)

    def is_unused(self, tensor: Tensor, end: int) -> bool:
        """Return whether the model neither returns `tensor` nor computes anything from it after `end`."""
        number = self.number(tensor)
        if number is None or number in self._outputs:
            return False
        return all(user < end for user in self._nodes[number].users)

    def is_source(self, earlier: int, later: int) -> bool:
        """Return whether `later` was computed from `earlier`."""
        derived = {earlier}
        for number in range(earlier + 1, later + 1):
            if not derived.isdisjoint(self._nodes[number].sources):
                derived.add(number)
        return later in derived

    def find_logits(self) -> set[int]:
        """Return the numbers of tensors from a last convolution or linear layer to an output of the model.

        A layer that keeps the number of channels is not taken for one of logits: feature pyramids end in such
        convolutions.
        """
        are_values: list[bool] = []
        for node in self._nodes:
            joined = node.rearranges and all(are_values[source] for source in node.sources)
            are_values.append(node.projects or joined)
        logits = {number for number in self._outputs if are_values[number]}
        for number in range(len(self._nodes) - 1, -1, -1):
            if number in logits and not self._nodes[number].projects:
                logits.update(self._nodes[number].sources)
        return logits

    def _numbers_of(self, tensors: Iterable[Tensor]) -> list[int]:
        return [self._numbers[id(tensor)][0] for tensor in tensors if id(tensor) in self._numbers]

    def _add(self, name: str, inputs: Sequence[Tensor], output: Tensor) -> None:
        sources, number = sorted({*self._numbers_of(inputs)}), len(self._nodes)
        roots = {self._nodes[source].root for source in sources}
        self._nodes.append(
            _Node(
                sources=sources,
                root=roots.pop() if name in _CHAIN and len(roots) == 1 else number,
                rearranges=bool(sources)
                and (name in _REARRANGEMENTS or (name in _SUMS and len(sources) == 1)),
                projects=self._projects(name, inputs, output),
            )
        )
        for source in sources:
            self._nodes[source].users.append(number)
        self._numbers[id(output)] = number, version(output)

    def _projects(self, name: str, inputs: Sequence[Tensor], output: Tensor) -> bool:
        if name not in CONVOLUTIONS | PRODUCTS | {"linear"}:
            return False
        dimension = 1 if name in CONVOLUTIONS else -1
        features = [tensor for tensor in inputs if id(tensor) in self._numbers]
        return len(features) == 1 and features[0].shape[dimension] != output.shape[dimension]


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
    """

    makers: Sequence[str]
    depth: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Addition:
    """Two feature maps that the module at `path` added, blended or subtracted in its own forward.

    Attributes:
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
