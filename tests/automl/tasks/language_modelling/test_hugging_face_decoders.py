"""Causal language models of transformers as decoders: sites, replacement, weights, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from attention import Spec
from automl.base.errors import InputError
from automl.tasks.language_modelling import hugging_face
from automl.tasks.language_modelling.model import find_decoder
from backbones import insert, sites
from backbones.take_over import load
from tests.helpers.tiny_decoders import BASE, CONTEXT, DECODERS, DEPTH, HEADS, VOCABULARY, WIDTH, save

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=DECODERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(transformers, request.param, tmp_path / request.param, with_weights=True)


def build(folder: Path, vocabulary: int = VOCABULARY, length: int = CONTEXT) -> torch.nn.Module:
    torch.manual_seed(0)
    return find_decoder(f"hf:{folder}").build(vocabulary=vocabulary, length=length).eval()


def test_each_layer_is_a_site_for_a_causal_mixer(folder: Path) -> None:
    names = [site.name for site in sites(build(folder), TOKENS)]
    parts = ("mixer", "attention.branch", "mlp.branch")
    blocks = [f"block{i + 1}" for i in range(DEPTH)]
    assert names == ["stem", *(name for b in blocks for name in (*(f"{b}.{part}" for part in parts), b))]
    model = build(folder)
    before = model(TOKENS)
    insert(model, {"block2.mixer": Spec("linear", {"causal": True})}, TOKENS)
    assert model(TOKENS).shape == before.shape == (*TOKENS.shape, VOCABULARY)
    assert not torch.equal(model(TOKENS), before)
    with pytest.raises(InputError, match="see later"):
        insert(build(folder), {"block2.mixer": Spec("linear")}, TOKENS)


def test_weights_and_shape_are_those_of_the_folder(folder: Path) -> None:
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(TOKENS).logits
    record, model = find_decoder(f"hf:{folder}"), build(folder)
    assert record.published is not None
    assert not torch.equal(model(TOKENS), expected)
    assert load(model, record.published(classes=0), classes=0, source="of the folder") == []
    assert torch.equal(model(TOKENS), expected)
    record = find_decoder(f"hf:{folder}")
    assert record.shape is not None
    shape, is_gpt2 = record.shape(), folder.name == "gpt2"
    assert (shape.depth, shape.width, shape.heads) == (DEPTH, WIDTH, HEADS)
    assert shape.cache == 2 * WIDTH // (1 if is_gpt2 else 2)  # half as many heads of keys and values
    assert shape.encoding == ("none" if is_gpt2 else "rotary")
    assert shape.base == (BASE if folder.name == "llama" else None)


def test_a_folder_without_weights_is_described(tmp_path: Path) -> None:
    assert find_decoder(f"hf:{save(transformers, 'llama', tmp_path)}").published is None
    save(transformers, "llama", tmp_path)
    with pytest.raises(InputError, match=r"tokenizer does not fit the model .* it has 301 tokens"):
        build(tmp_path, vocabulary=VOCABULARY + 1)
    with pytest.raises(InputError, match=r"positions for 32 tokens; got a context of 33\. Take --size 32"):
        build(tmp_path, length=CONTEXT + 1)
    save(transformers, "llama", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"pytorch_model\.bin is not read, since unpickling it may run code"):
        find_decoder(f"hf:{tmp_path}")


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_model_that_is_not_causal_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"is not a causal language model, but '{kind}'"):
        build(save(transformers, kind, tmp_path))


def test_incomplete_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(transformers, "llama", tmp_path, with_weights=True)
    weights = load_file(file := tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InputError, match=r"1 parameters lack theirs, such as model\.layers\.1\.self_attn"):
        hugging_face.published(str(tmp_path))


def test_custom_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}')
    with pytest.raises(InputError, match=f"hf:{tmp_path} .*contains custom code"):
        find_decoder(f"hf:{tmp_path}")


def change(folder: Path, **values: object) -> Path:
    """Change keys of a new configuration."""
    config = json.loads((save(transformers, "llama", folder) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_configuration_names_no_code(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel of the hub, transformers would load and run it."""
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        save(transformers, "llama", tmp_path, with_weights=True)
    )
    change(tmp_path, **{key: "owner/kernel"})
    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", pytest.fail)
    model = build(tmp_path)
    load(model, hugging_face.published(str(tmp_path)), classes=0, source="of the folder")
    torch.testing.assert_close(model(TOKENS), expected.eval()(TOKENS).logits)
    assert model.get_submodule("model").config._attn_implementation == "sdpa"  # type: ignore[union-attr]


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/model.safetensors", "part.bin", 1])
def test_an_index_names_parts_beside_it(file: object, tmp_path: Path) -> None:
    change(tmp_path)
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors", "lm_head.weight": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"must name files beside it that end in \.safetensors; got "):
        hugging_face.published(str(tmp_path))


def test_weights_in_parts_are_loaded(tmp_path: Path) -> None:
    save(transformers, "llama", tmp_path, with_weights=True)
    whole = hugging_face.published(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    model = build(tmp_path)
    model.load_state_dict(whole)
    model.get_submodule("model").save_pretrained(tmp_path, max_shard_size="8KB")  # type: ignore[operator]
    assert not (tmp_path / "model.safetensors").exists()
    parts = hugging_face.published(str(tmp_path))
    assert all(torch.equal(value, whole[key]) for key, value in parts.items())


@pytest.mark.parametrize(
    ("key", "value"),
    [("transformers_weights", "other.safetensors"), ("quantization_config", {"quant_method": "fp8"})],
)
def test_other_weights_and_quantised_ones_are_refused(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=key):
        find_decoder(f"hf:{change(tmp_path, **{key: value})}")
