"""Our layers in models of Hugging Face: a quantizer by which `from_pretrained` and `save_pretrained` know them.

A file has `NAME.coded` of a compressed table, or `NAME.rows.weight` and `NAME.anchors` of an anchored one. An empty
`NAME.weight` stands beside them: where antembed is not imported, transformers finds that its shape does not fit, and says so,
instead of drawing a random table.
"""

import copy
import re
from pathlib import Path
from types import MethodType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from antembed.data.safetensors_map import read_safetensors
from antembed.files import JSON
from antembed.hf.compressed_embedding import CodedEmbedding
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding
from antembed.layer.replace import TiedHead, check_plain, put_layer

METHOD = "antembed"
OURS = Embedding | CodedEmbedding


@register_quantization_config(METHOD)
class AntembedConfig(QuantizationConfigMixin):
    """`quantization_config` of a config.json: `coded` has the bytes of each compressed table, by the layer's name, `anchored`
    the anchors of each anchored one, `tied` the layers whose copies of a table were left out."""

    def __init__(
        self,
        coded: dict[str, int] | None = None,
        anchored: dict[str, JSON] | None = None,
        tied: list[str] | None = None,
        **others: object,
    ):
        self.quant_method = others.pop("quant_method", METHOD)
        self.coded, self.anchored, self.tied = coded or {}, anchored or {}, tied or []
        if others:
            raise ValueError(f"quantization_config of antembed has {', '.join(others)}, unknown here; upgrade antembed")

    def set_tables(self, model: PreTrainedModel) -> None:
        (self.coded, self.anchored), self.tied = _tables(model), []


class Shared(nn.Module):
    """A second place of a layer while weights are loaded: a layer in two places would be loaded once and then overwritten."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.__dict__["shared"] = (layer,)


@register_quantizer(METHOD)
class AntembedQuantizer(HfQuantizer):
    """Puts our layers in before weights are loaded, and names them when a model is saved."""

    requires_calibration = True  # a model is compressed by `antembed compress`, not while it is loaded
    quantization_config: AntembedConfig
    is_trainable, is_qat_trainable, is_compileable = True, True, False

    def is_serializable(self) -> bool:
        return True

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **_: object
    ) -> None:
        config, in_file = self.quantization_config, _names(checkpoint_files)
        tied: list[str] = []
        for name in [*config.coded, *config.anchored]:
            needed = [f"{name}.coded"] if name in config.coded else [f"{name}.rows.weight", f"{name}.anchors"]
            if in_file is not None and (lost := [key for key in needed if key not in in_file]):
                raise ValueError(
                    f"{' and '.join(lost)} should be in the file by config.json and is not; if {name} is a plain layer there, "
                    "remove quantization_config from config.json, else write the folder anew"
                )
            own = own_name(model, name)
            if own is None:
                raise ValueError(f"a {type(model).__name__} has no layer {name}, which config.json names; take another class")
            old = model.get_submodule(own)
            check_plain(name, old)
            new = _coded(old, config.coded[name]) if name in config.coded else _anchored(old, config.anchored[name])
            tied += _put(model, own, new, in_file)
            model._keys_to_ignore_on_load_unexpected.add(re.escape(f"{name}.weight") + "$")
        for name in config.tied:
            if (own := own_name(model, name)) is not None and own not in tied:
                raise ValueError(f"{own} is not tied to the embedding, and its copy was left out; set tie_word_embeddings=true")
        _prepare(model)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_: object) -> PreTrainedModel:
        for module in list(model.modules()):
            if isinstance(module, Shared):
                put_layer(model, module, module.__dict__["shared"][0], None)
        self.quantization_config.set_tables(model)
        return model

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What is saved: layers in several places once, and the empty weights."""
        self.quantization_config.set_tables(model)
        if isinstance(model.get_output_embeddings(), TiedHead):
            model.config.tie_word_embeddings = True  # peft unties what has two addresses, as computed weights have
        every = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, OURS)]
        first = dict(model.named_modules())
        again = tuple(f"{name}." for name, _ in every if name not in first)
        state = {key: tensor for key, tensor in model.state_dict().items() if not again or not key.startswith(again)}
        return state | {f"{name}.weight": torch.empty(0) for name, _ in every if name in first}, {}

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """Plain layers with the same vectors, heads tied to them as before."""
        kind = dtype if isinstance(dtype, torch.dtype) else model.dtype  # a model that was saved has a string in its config
        for layer in [module for module in model.modules() if isinstance(module, AnchorEmbedding | CodedEmbedding)]:
            weight = layer.to_dense().detach().to(kind).clone()
            plain = nn.Embedding(weight.shape[0], weight.shape[1], layer.padding_idx, _weight=weight)
            heads = [head for head in model.modules() if isinstance(head, TiedHead) and head.layer is layer]
            put_layer(model, layer, plain, None)
            for head in heads:
                linear = nn.Linear(head.in_features, head.out_features, bias=False, device="meta")
                linear.weight = plain.weight
                linear.register_parameter("bias", head.bias)
                put_layer(model, head, linear, None)
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        for part in parts:
            for name in ("_tied_weights_keys", "resize_token_embeddings"):
                part.__dict__.pop(name, None)
        for part in parts:
            part.all_tied_weights_keys = part.get_expanded_tied_weights_keys(all_submodels=True)
        return model


def _put(model: PreTrainedModel, own: str, new: CodedEmbedding | AnchorEmbedding, in_file: set[str] | None) -> list[str]:
    """Our layer in the place of theirs; → the layers that are tied to it."""
    old, weight = model.get_submodule(own), f"{own}.weight"
    source = model.all_tied_weights_keys.get(weight, weight)  # on the meta device nothing is tied yet but by name
    tied = {name for name, other in model.all_tied_weights_keys.items() if other == source} | {source} - {weight}
    for name in sorted(tied - {weight}):
        module = model.get_submodule(name.removesuffix(".weight"))
        if in_file is not None and name in in_file:
            raise ValueError(f"{name} is in the file, but config.json ties it; set tie_word_embeddings to false there")
        put_layer(model, module, Shared(new) if isinstance(module, nn.Embedding) else TiedHead(new, module.bias), None)
    put_layer(model, old, new, None)
    return [name.removesuffix(".weight") for name in tied]


def attach(model: nn.Module) -> None:
    """Make `save_pretrained` of every Hugging Face model in here know its anchored layers."""
    inside: set[nn.Module] = set()
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part not in inside:
            inside |= set(part.modules())
            config = AntembedConfig(*_tables(part))
            if config.coded or config.anchored:
                _own_config(part)
                part.config.quantization_config = config
                part.hf_quantizer = AntembedQuantizer(config, pre_quantized=True)
                _prepare(part)


def _own_config(model: PreTrainedModel) -> None:
    """A copy of its config for this model alone: others that were made from the same object keep their plain layers."""
    copies: dict[int, object] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        if (config := copies.get(id(module.__dict__.get("config")))) is not None:
            module.config = config  # also those of its parts, which are inside


def resize_token_embeddings(
    self: PreTrainedModel, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
) -> nn.Module:
    """As of transformers, for a model whose input embedding is one of ours."""
    layer = self.get_input_embeddings()
    if not isinstance(layer, AnchorEmbedding | CodedEmbedding):
        return type(self).resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of, mean_resizing)
    V, multiple = layer.num_embeddings, pad_to_multiple_of or 1
    n = -(-(V if new_num_tokens is None else new_num_tokens) // multiple) * multiple
    if n == V:
        return layer
    if isinstance(layer, CodedEmbedding):
        raise ValueError(f"a compressed table of {V} rows cannot become one of {n}; first call model.dequantize()")
    if n < V:
        raise ValueError(f"an anchored table of {V} rows cannot shrink to {n}; keep its rows, or first call model.dequantize()")
    layer.add_objects(n - V)
    if mean_resizing:  # new vectors are the mean of the old, as in transformers
        with torch.no_grad():
            layer.rows.weight[V:] = layer.rows.weight[:V].mean(0)
    head = self.get_output_embeddings()
    for tied in self.modules():
        if isinstance(tied, TiedHead) and tied.layer is layer:
            tied.out_features = n
            if tied.bias is not None:
                tied.bias.data = nn.functional.pad(tied.bias.data, (0, n - V))
    if isinstance(head, nn.Linear):
        self.set_output_embeddings(self._get_resized_lm_head(head, n, mean_resizing=mean_resizing))
    self.config.get_text_config().vocab_size = self.vocab_size = n
    return layer


def _prepare(model: PreTrainedModel) -> None:
    """What transformers asks of a model's class and our layers have not: ties by parameter, resizing by `weight.data`, and no
    empty weight in a checkpoint that is resumed."""
    for part in model.modules():
        if isinstance(part, OURS):
            part.register_load_state_dict_pre_hook(_drop_empty_weight)
        if isinstance(part, PreTrainedModel):
            own = dict(part.named_parameters(remove_duplicate=False))  # without the computed weights of our layers
            ties = {to: source for to, source in part.all_tied_weights_keys.items() if to in own and source in own}
            part._tied_weights_keys = part.all_tied_weights_keys = ties
            part.__dict__["resize_token_embeddings"] = MethodType(resize_token_embeddings, part)


def _drop_empty_weight(layer: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """The Trainer, which resumes by load_state_dict, would call it unexpected."""
    if (weight := state.get(f"{prefix}weight")) is not None and weight.numel() == 0:
        del state[f"{prefix}weight"]


def own_name(model: PreTrainedModel, name: str) -> str | None:
    """A layer's name in this model; a model with a head has its base model's name before those of its layers."""
    known, prefix = dict(model.named_modules()), f"{model.base_model_prefix}."
    return next((own for own in (name, name.removeprefix(prefix), prefix + name) if own in known), None)


def _names(files: list[str] | None) -> set[str] | None:
    """The tensors in safetensors files."""
    if files is None or not all(file.endswith(".safetensors") for file in files):
        return None
    return {tensor.name for file in files for tensor in read_safetensors(Path(file))[0]}


def _coded(old: nn.Embedding, size: int) -> CodedEmbedding:
    V, d = old.weight.shape
    return CodedEmbedding(V, d, old.padding_idx, coded=torch.zeros(size, dtype=torch.uint8))


def _anchored(old: nn.Embedding, about: JSON) -> AnchorEmbedding:
    dtype = torch.promote_types(old.weight.dtype, torch.float32)  # T is never coarser, whatever the model's type
    V, d = old.weight.shape
    new = AnchorEmbedding(V, d, old.padding_idx, **about, dtype=dtype)
    if dtype != old.weight.dtype:
        new.register_buffer("like", torch.empty(0, dtype=old.weight.dtype), persistent=False)  # follows the model's type
        new.register_forward_hook(_as_the_model)
    return new


def _as_the_model(layer: nn.Module, ids: object, vectors: Tensor) -> Tensor:
    """The vectors of an anchored layer in a model of half precision, in its type."""
    return vectors.to(layer.get_buffer("like").dtype)


def _tables(model: PreTrainedModel) -> tuple[dict[str, int], dict[str, JSON]]:
    """Our layers in a model, as a config says it."""
    ours = {name: module for name, module in model.named_modules() if isinstance(module, OURS)}
    for name, module in ours.items():
        if not isinstance(module, AnchorEmbedding | CodedEmbedding):
            raise ValueError(f"{name} is a {type(module).__name__}, which a Hugging Face model cannot have; leave it out")
    coded = {name: module.coded.numel() for name, module in ours.items() if isinstance(module, CodedEmbedding)}
    anchored = {name: module for name, module in ours.items() if isinstance(module, AnchorEmbedding)}
    return coded, {name: {"num_anchors": module.num_anchors, "sparse": module.rows.sparse} for name, module in anchored.items()}
