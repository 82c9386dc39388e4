"""Models, their named sites, and the one function that inserts a placement.

factory          One factory for every backbone: of the table, of a library, one's own
backbone_table   The table of backbones
libraries        Models of torchvision, timm and segmentation_models_pytorch
extras           Packages that one task alone needs, imported when they are used
normalisation    How the images that a backbone takes are normalised
loading          Loads user-defined objects: `file.py:name` and `package.module:name`
xresnet          fastai's xresnets
vit              Vision transformers with a choice of block
resnet1d         A residual network for time series
lstm             The recurrent baselines: a stacked LSTM and residual bidirectional LSTMs
larnn            LARNN: an LSTM whose cell attends to its own latest states
larnn_loop       The loop over time of a LARNN layer
larnn_scan       The same loop as one operation, for export
text_encoder     Encoders of text: self-attention, convolutions, a bag of words
text_options     Which options the encoders of text may have
pooling          From the vectors of a text's tokens to one
towers           Two encoders whose vectors are compared
siamese          One network for several inputs
psmnet           The disparity of two rectified images
detector         Faster and Mask R-CNN over any backbone, with sites on the feature pyramid
unet             A U-Net over any backbone, with sites on its skip connections
detector_graph   A trained detector as a graph of fixed shapes, for export
norm             Batch norm of sequences of different lengths
ends             Padded sequences: checks of input and mask, last state, mean, reversal
site             The sites of any model: where a feature map can be transformed
placement        The type `Placement`: an attention by the name of each site
unknown_site     The error for a site that a model lacks
insertion        The function that inserts a placement
weights          Trained weights for a new model: which of them are the backbone's, and whether they fit
mixer            What stands in place of the module that mixes tokens
torch_internals  All that is used of PyTorch beside its public API
trace            A forward pass on fake tensors that records what each submodule returns
channels         Which dimension of a tensor holds the channels
output           The feature map in what a submodule returns, and a classifier's logits
lazy_layers      Lazy layers get their weights
memory_format    Whether a model of images can be channels_last
example          The example input that a model is traced with
macs             Counts the multiply-adds of a forward pass
"""

from typing import TYPE_CHECKING

from attention.lazy import lazily

if TYPE_CHECKING:
    from backbones.backbone_table import BACKBONES, ENCODERS, STEREO, Backbone, check_encoder, check_stereo
    from backbones.example import Example, call
    from backbones.factory import build, check_options, find, published_weights
    from backbones.insertion import gates, insert
    from backbones.normalisation import IMAGENET, Normalisation
    from backbones.placement import Placement
    from backbones.site import Site, sites

# Most need torch, which takes seconds to import: they are loaded when they are first asked for.
__getattr__ = lazily(
    __name__,
    {
        "BACKBONES": "backbone_table",
        "Backbone": "backbone_table",
        "ENCODERS": "backbone_table",
        "STEREO": "backbone_table",
        "check_encoder": "backbone_table",
        "check_stereo": "backbone_table",
        "Example": "example",
        "IMAGENET": "normalisation",
        "Normalisation": "normalisation",
        "Placement": "placement",
        "Site": "site",
        "build": "factory",
        "call": "example",
        "check_options": "factory",
        "find": "factory",
        "gates": "insertion",
        "insert": "insertion",
        "published_weights": "factory",
        "sites": "site",
    },
)

__all__ = [
    "BACKBONES",
    "ENCODERS",
    "IMAGENET",
    "STEREO",
    "Backbone",
    "Example",
    "Normalisation",
    "Placement",
    "Site",
    "build",
    "call",
    "check_encoder",
    "check_options",
    "check_stereo",
    "find",
    "gates",
    "insert",
    "published_weights",
    "sites",
]
