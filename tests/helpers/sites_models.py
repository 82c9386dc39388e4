"""Small models with blocks of many kinds, for tests of sites and insertion."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from attention.padding import padding
from backbones.torch_internals import AnyBatchNorm

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class PostActivation(nn.Module):
    """Block relu(x + branch(x)), with the relu as a function and the branch as a Sequential."""

    def __init__(self, i: int, o: int, *, stride: int, dimensions: int) -> None:
        super().__init__()
        conv, norm = CONVS[dimensions], NORMS[dimensions]
        self.branch = nn.Sequential(
            conv(i, o, 3, stride, 1), norm(o), nn.ReLU(), conv(o, o, 3, padding=1), norm(o)
        )
        self.short = nn.Identity() if stride == 1 and i == o else conv(i, o, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.short(x) + self.branch(x))


class PreActivation(nn.Module):
    """Block x + conv(relu(norm(x))), with the addition in place and the shortcut without a module."""

    def __init__(self, i: int, o: int, *, stride: int, dimensions: int) -> None:
        super().__init__()
        conv, norm = CONVS[dimensions], NORMS[dimensions]
        self.norm1, self.conv1 = norm(i), conv(i, o, 3, stride, 1)
        self.norm2, self.conv2 = norm(o), conv(o, o, 3, padding=1)
        self.short = None if stride == 1 and i == o else conv(i, o, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        y += x if self.short is None else self.short(x)
        return y


class Net(nn.Module):
    """Model with a stem, two stages of two residual blocks and a head."""

    def __init__(self, block: type[nn.Module] = PostActivation, *, dimensions: int = 2) -> None:
        super().__init__()
        conv = CONVS[dimensions]
        self.stem = nn.Sequential(conv(3, 8, 3, 2, 1), NORMS[dimensions](8), nn.ReLU())
        self.layer1 = nn.Sequential(*(block(8, 8, stride=1, dimensions=dimensions) for _ in range(2)))
        self.layer2 = nn.Sequential(*(block(8 * s, 16, stride=3 - s, dimensions=dimensions) for s in (1, 2)))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).flatten(2).mean(-1))


class Shared(nn.Module):
    """Model whose second block runs twice, so that it has no unique position."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.first, self.twice = (PostActivation(8, 8, stride=1, dimensions=2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.twice(self.first(self.stem(x)))).mean((2, 3))


class Keeping(Net):
    """Model that stores state in each forward pass, in several ways. levit and tiny_vit cache a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.last: Tensor | None = None
        self.bias_cache: dict[str, Tensor] = {}
        self.bias = nn.Parameter(torch.ones(4))
        self.doubled = 2 * self.bias  # It is no leaf, so that a plain copy.deepcopy rejects it.
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        self.bias_cache[str(x.device)] = self.bias[[3, 2, 1, 0]]
        self.seen += len(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 2, 3))
        self.late = x.amax()
        return super().forward(x) + self.doubled.sum()


class Plain(nn.Module):
    """Model without residual blocks, in which one Sequential has its own forward."""

    class Alternating(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for layer in list(self)[:2]:
                x = layer(x)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.own = self.Alternating(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(2), nn.Linear(16, 1), nn.Flatten(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self.features(x)))


def vit() -> nn.Module:
    """Return a model for images of 32 pixels, with 16 patches and a class token."""
    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=5
    )
    nn.init.normal_(model.heads.head.weight)  # These weights are zero in a new model.
    return model


def swin() -> nn.Module:
    return SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=[4, 4],
        stochastic_depth_prob=0.0,
        num_classes=5,
    )


class Recurrent(nn.Module):
    """Classifier of token ids (B, T) by an LSTM, whose output is a tuple."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=batch_first, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, (_, _) = self.lstm(self.embedding(ids))
        return self.head(outputs.mean(1))


class Text(nn.Module):
    """Classifier of token ids (B, T) with a mask (B, T), which its attention uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        with padding(mask):
            y = self.encoder(self.embedding(ids), src_key_padding_mask=~mask)
        return self.head((y * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


class Stereo(nn.Module):
    """Model from two images to disparities, by a cost volume (B, C, D, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, 4, 1)
        self.volume = nn.Sequential(nn.Conv3d(8, 6, 3, padding=1), nn.ReLU())
        self.scores = nn.Conv3d(6, 1, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.features(torch.cat([left, right])).chunk(2)
        pairs = [torch.cat([a, b.roll(d, dims=-1)], dim=1) for d in range(5)]
        return self.scores(self.volume(torch.stack(pairs, dim=2))).squeeze(1).softmax(dim=1)


class Mixer(nn.Module):
    """MLP-Mixer. The linear layers of its first branch act along the positions."""

    class Block(nn.Module):
        def __init__(self, channels: int, positions: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
            self.along, self.across = nn.Linear(positions, positions), nn.Linear(channels, channels)
            self.drop = nn.Dropout(0.1)
            self.drop2 = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.drop(self.along(self.norm1(x).mT).mT)
            return x + self.drop2(self.across(self.norm2(x)))

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.block = self.Block(8, 16)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.patches(x).flatten(2).mT).mean(1))


def randomise_norms(model: nn.Module) -> nn.Module:
    """Switch to evaluation mode with random norms, so that every branch affects the output."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, AnyBatchNorm):
                for values in (module.weight, module.bias, module.running_var):
                    values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
    return model.eval()
