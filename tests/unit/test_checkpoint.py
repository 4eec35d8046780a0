# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that cannot be served is refused by its headers, with layer or file and the remedy."""

from __future__ import annotations

import json

import pytest

from vllm_ext.quant import checkpoint

LAYER = "model.layers.0.mlp.down_proj"


def write(file, tensors):
    """Write a safetensors file of zero bytes: {name: (dtype, shape)}."""
    sizes = {"U8": 1, "BF16": 2, "F32": 4}
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        count = sizes[dtype]
        for extent in shape:
            count *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


def good():
    return {
        f"{LAYER}.weight": ("U8", [64, 48]),
        f"{LAYER}.weight_scale": ("U8", [64, 3]),
        "norm.weight": ("BF16", [96]),
    }


def test_a_good_checkpoint_passes(tmp_path):
    write(tmp_path / "model.safetensors", good())
    checkpoint.check_folder(tmp_path)


def test_weight_and_scale_may_lie_in_different_files(tmp_path):
    tensors = good()
    write(tmp_path / "a.safetensors", {f"{LAYER}.weight": tensors[f"{LAYER}.weight"]})
    write(tmp_path / "b.safetensors", {f"{LAYER}.weight_scale": ("U8", [64, 4])})
    with pytest.raises(ValueError, match=f"{LAYER}.weight_scale is U8 .64, 4., .* needs U8 .64, 3."):
        checkpoint.check_folder(tmp_path)


def test_a_short_last_group_has_a_scale(tmp_path):
    write(tmp_path / "m.safetensors", {"x.weight": ("U8", [4, 24]), "x.weight_scale": ("U8", [4, 2])})
    checkpoint.check_folder(tmp_path)


def test_scales_of_another_type_are_named(tmp_path):
    write(tmp_path / "model.safetensors", good() | {f"{LAYER}.weight_scale": ("F32", [64, 3])})
    with pytest.raises(ValueError, match=f"{LAYER}.weight_scale is F32"):
        checkpoint.check_folder(tmp_path)


def test_a_quantized_lm_head_is_named_with_the_remedy(tmp_path):
    write(tmp_path / "model.safetensors", good() | {"lm_head.weight_scale": ("U8", [100, 3])})
    with pytest.raises(ValueError, match="lm_head is quantized .* lm_head excluded"):
        checkpoint.check_folder(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 40, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    file = tmp_path / "model.safetensors"
    write(file, good())
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors is (truncated|not a whole).* again"):
        checkpoint.check_folder(tmp_path)


def test_a_header_that_is_no_json_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"oops")
    with pytest.raises(ValueError, match="unreadable safetensors header"):
        checkpoint.check_folder(tmp_path)


def test_other_formats_are_not_ours(tmp_path):
    write(tmp_path / "model.safetensors", {"x.weight": ("BF16", [4, 4]), "x.weight_scale": ("F32", [1])})
    checkpoint.check_folder(tmp_path)
