"""Models, their named sites, and the function that inserts a placement.

factory          One factory for every backbone: of the table, of a library, of the user
backbone_table   The table of backbones
libraries        Models of torchvision, timm, segmentation_models_pytorch and fastai, and their normalisation
small_resnet     A small ResNet for small images
vit              Vision transformers with a choice of block
take_over        Trained weights for a new model: selects them, and copies those of replaced attention
padded           Padded sequences: checks of input and mask, last state, mean, reversal, batch norm
site             The sites of a model, and the error for an unknown one
locations        Names of the positions at which a module can be inserted
insertion        The function that inserts a placement
influence        Tests by changing inputs: causality, separation of examples, padding
torch_internals  Everything used of PyTorch besides its public API
trace            A forward pass on fake tensors that records the outputs of submodules
trace_record     The record of that pass: outputs, additions, and which tensors were computed from which
channels         Which dimension of a tensor holds the channels, and whether they can be last in memory
example          The example input that a model is traced with; the feature map or the logits in an output
cost             Multiply-adds of a forward pass, and the cost of an attention module at a site
contract         Checks of an attention module at a site, before anything is trained
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from attention.spec import Placement
    from backbones.backbone_table import BACKBONES, Backbone
    from backbones.example import Example, call
    from backbones.factory import build, check_options, find, published_file, published_weights
    from backbones.insertion import gates, insert
    from backbones.libraries import IMAGENET, Normalisation
    from backbones.site import Site, sites

# Most need torch, which takes seconds to import, so they are loaded on first use.
__getattr__ = lazily(__name__)

__all__ = [
    "BACKBONES", "IMAGENET", "Backbone", "Example", "Normalisation", "Placement", "Site", "build", "call",
    "check_options", "find", "gates", "insert", "published_file", "published_weights", "sites",
]  # fmt: skip
