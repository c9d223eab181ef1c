"""What is wrong with a checkpoint for a layer E = T·A, with the remedy."""

from collections.abc import Mapping

from torch import Tensor


def checkpoint_error(state: Mapping[str, Tensor], prefix: str, V: int, d: int) -> str | None:
    """Why a layer of V objects and d dimensions cannot load its part of the checkpoint; None: nothing known here."""
    anchors, weight, dense = (state.get(prefix + name) for name in ("anchors", "rows.weight", "weight"))
    if anchors is None and weight is None and dense is not None:
        return (
            f"{prefix}weight: the checkpoint has a dense table of {tuple(dense.shape)}, as nn.Embedding has, this layer T and "
            f"A of {V} objects and {d} dimensions; factorize it with antembed.AnchorEmbedding.from_pretrained(weight, "
            "num_anchors=…), whose state_dict fits"
        )
    if anchors is None or weight is None:
        return None
    if anchors.shape[1] != d:
        return (
            f"{prefix}anchors: the checkpoint has {anchors.shape[1]} dimensions, this layer {d}; build the layer with "
            f"embedding_dim={anchors.shape[1]}"
        )
    if weight.shape[0] != V:
        more = weight.shape[0] - V
        remedy = f"grow it first with add_objects({more})" if more > 0 else "build a layer of that size"
        return f"{prefix}rows.weight: the checkpoint has {weight.shape[0]} objects, this layer {V}; {remedy}"
    if weight.shape[1] != anchors.shape[0]:
        return f"{prefix}: the checkpoint's T has {weight.shape[1]} columns but its A {anchors.shape[0]} rows; it is damaged"
    return None
