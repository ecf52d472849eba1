"""Writes test/model/file/data/weight_blocks.bin: random weight blocks of each type and their
values, decoded by the `gguf` Python package. Run: python test/oracle/weight_blocks.py (needs gguf
and numpy).

The file is a row of records, little-endian: u32 type id, u32 number of values, the blocks' bytes,
the f32 values.
"""

import pathlib
import struct

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
TYPES += ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
BLOCKS = 4
# Byte offsets of a block's f16 fields: random bytes there would often be NaN or Inf.
F16_FIELDS = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
OUT = pathlib.Path(__file__).parents[1] / "model" / "file" / "data" / "weight_blocks.bin"


def random_blocks(rng, name, values, block_bytes):
    if name == "F32":
        return rng.standard_normal(values).astype("<f4").view(np.uint8)
    if name == "F16":
        # All kinds but NaN: normal, subnormal, both zeros, both infinities.
        special = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7BFF], "<u2")
        normal = rng.standard_normal(values - len(special)).astype("<f2").view("<u2")
        return np.concatenate([special, normal]).view(np.uint8)
    if name == "BF16":
        bits = rng.standard_normal(values).astype("<f4").view("<u4")
        return (bits >> 16).astype("<u2").view(np.uint8)
    blocks = rng.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [104, 120, 128, 146]  # exponents
    for offset in F16_FIELDS[name]:
        scales = rng.standard_normal(BLOCKS).astype("<f2")
        scales[-1] = np.float16(3e-6)  # subnormal
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    return blocks.reshape(-1)


def main():
    rng = np.random.default_rng(20240229)
    with OUT.open("wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            values = 64 if block_values == 1 else BLOCKS * block_values
            data = random_blocks(rng, name, values, block_bytes)
            assert data.size == values // block_values * block_bytes
            raw = data.view("<f4") if name == "F32" else data.view("<f2") if name == "F16" else data
            decoded = np.asarray(gguf.quants.dequantize(raw, kind), dtype="<f4").reshape(-1)
            assert decoded.size == values and not np.isnan(decoded).any()
            out.write(struct.pack("<II", int(kind), values) + data.tobytes() + decoded.tobytes())


if __name__ == "__main__":
    main()
