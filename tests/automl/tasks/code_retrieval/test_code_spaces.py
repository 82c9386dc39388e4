"""The space of code search proposes the published configurations."""

from optuna.trial import FixedTrial

from automl.tasks.code_retrieval import CodeData, CodeModel
from automl.tasks.code_retrieval.model import ENCODERS
from automl.tasks.code_retrieval.space import BASELINE, codesearch, published

# As the source prints them.
ATTENTION = {
    "self_attention_activation": "gelu",
    "self_attention_hidden_size": 128,
    "self_attention_intermediate_size": 512,
    "self_attention_num_layers": 2,
    "self_attention_num_heads": 8,
    "self_attention_pool_mode": "weighted_mean",
}
CNN = {
    "1dcnn_layer_list": [128, 128],
    "1dcnn_kernel_width": [8, 8],
    "1dcnn_add_residual_connections": True,
    "1dcnn_activation": "tanh",
}


def restated(model: CodeModel) -> dict[str, object]:
    """Return all options of an encoder by their published names."""
    options = {**ENCODERS[model.backbone].options, **model.options}
    configs: dict[str, object] = {
        "self_attention_activation": options["attention_activation"],
        "self_attention_hidden_size": options["hidden"],
        "self_attention_intermediate_size": options["intermediate"],
        "self_attention_num_layers": options["layers"],
        "self_attention_num_heads": options["heads"],
        "self_attention_pool_mode": options["pooling"],
    }
    if model.backbone == "cnn-selfattention":
        count = options["convolutions"]
        configs |= {
            "1dcnn_layer_list": [options["hidden"]] * count,
            "1dcnn_kernel_width": [options["kernel"]] * count,
            "1dcnn_add_residual_connections": options["residual"],
            "1dcnn_activation": options["cnn_activation"],
        }
    return configs


def test_the_first_trials_after_the_baseline_are_the_published_encoders() -> None:
    first, second, *rest = (codesearch(FixedTrial(dict(params))) for params in published())
    expected = ({**ATTENTION}, {**ATTENTION, **CNN})
    for config, hyperparameters in zip((first, second), expected, strict=True):
        assert isinstance(config.data, CodeData)
        assert isinstance(config.model, CodeModel)
        data = config.data
        assert (data.vocabulary, data.query_length, data.code_length) == (10_000, 30, 200)
        assert restated(config.model) == hyperparameters
        assert not config.model.shared
        assert not config.model.placement
        assert config.model.options["positions"] == "learned"
        assert config.model.options["dropout"] == 0.1
    assert [config.model.backbone for config in rest] == ["cnn-selfattention", "cnn", "bow"]
    assert codesearch(FixedTrial(dict(BASELINE))).model.backbone == first.model.backbone == "selfattention"
