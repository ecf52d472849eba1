#!/usr/bin/env python3
"""Golden bytes of every format, from a second implementation of the written rules (numpy), for test/format/golden_test.cpp.

Usage: golden.py OUTPUT_FOLDER      (test/format/golden)
Each file NAME.hex has three lines of hex: the 64 x 48 input as f16, the codes, the parameters.
"""

import pathlib
import sys

import numpy as np

F32, F16 = np.float32, np.float16
T, D = 64, 48


def block():
    """A block with a large channel, a row of zeros, a constant channel and a channel of -0."""
    x, state = np.empty((T, D), F32), 1
    for t in range(T):
        for c in range(D):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            x[t, c] = F32((state >> 33) % 4001) / F32(1000) - F32(2)
    x[:, 5] += F32(600)
    x[:, 9] = F32(-3.25)
    x[:, 11] = F32(-0.0)
    x[17, :] = F32(0)
    return x.astype(F16).astype(F32)


def sat16(x):
    return np.clip(x, F32(-65504), F32(65504)).astype(F16)


def planes(codes, bits):
    """codes: [T][D] -> rows of the 4-bit plane, the 2-bit plane, the 1-bit plane, as bits needs."""
    if bits == 8:
        return codes.astype(np.uint8)
    rows, left = [], bits
    for plane in (4, 2, 1):
        if bits & plane:
            left -= plane
            part = (codes >> left) & ((1 << plane) - 1)
            parts = part.reshape(T, 8 // plane, D * plane // 8)
            rows.append(sum(parts[:, j] << (plane * j) for j in range(8 // plane)))
    return np.concatenate(rows, axis=1).astype(np.uint8)


def asymmetric(group, bits, clip):
    """group: [..., values] -> codes, scale, minimum."""
    steps = F32(2**bits - 1)
    low, high = group.min(-1), group.max(-1)
    if clip != 100:
        middle = F32(0.5) * low + F32(0.5) * high
        reach = (F32(0.5) * high - F32(0.5) * low) * (F32(clip) / F32(100))
        low, high = middle - reach, middle + reach
    minimum = sat16(low)
    scale = sat16((high - minimum.astype(F32)) / steps)
    s, m = scale.astype(F32)[..., None], minimum.astype(F32)[..., None]
    q = np.rint(np.clip((group - m) / np.where(s > 0, s, F32(1)), F32(0), steps))
    return np.where(s > 0, q, 0).astype(np.int64), scale, minimum


def per_channel(x, bits, tokens, clip=100):
    groups = x.reshape(T // tokens, tokens, D).transpose(0, 2, 1)
    q, scale, minimum = asymmetric(groups, bits, clip)
    return planes(q.transpose(0, 2, 1).reshape(T, D), bits), np.concatenate(
        [scale.ravel(), minimum.ravel()]
    )


def per_token(x, bits, channels, clip=100):
    codes, scales, minima = np.zeros((T, D), np.int64), [], []
    for begin in range(0, D, channels):
        q, scale, minimum = asymmetric(x[:, begin : begin + channels], bits, clip)
        codes[:, begin : begin + channels] = q
        scales.append(scale)
        minima.append(minimum)
    return planes(codes, bits), np.concatenate(scales + minima)


def int8(x):
    scale = sat16(np.abs(x).max(-1) / F32(127))
    s = scale.astype(F32)[:, None]
    q = np.where(s > 0, np.rint(np.clip(x / np.where(s > 0, s, F32(1)), -127, 127)), 0)
    return q.astype(np.int8).view(np.uint8), scale


def int4_g32(x):
    codes, scales = np.zeros((T, D), np.int64), []
    for begin in range(0, D, 32):
        g = x[:, begin : begin + 32]
        high, low = np.maximum(g.max(-1), 0), np.minimum(g.min(-1), 0)
        scale = sat16(np.where(high >= -low, high, low) / F32(-8))
        scale = np.where(scale == 0, F16(0), scale)
        s = scale.astype(F32)[:, None]
        q = np.where(s != 0, np.rint(np.clip(g / np.where(s != 0, s, F32(1)), -8, 7)), 0)
        codes[:, begin : begin + 32] = q + 8
        scales.append(scale)
    return planes(codes, 4), np.concatenate(scales)


def fp8_e4m3(x):
    values = np.array(
        [
            (c & 7) / 8 * 2.0**-6 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7)
            for c in range(127)
        ]
    )
    scale = sat16(np.abs(x).max(-1) / F32(448))
    codes = np.zeros((T, D), np.uint8)
    for t in range(T):
        if scale[t] > 0:
            for c in range(D):
                v = min(abs(float(x[t, c] / scale[t].astype(F32))), 448.0)
                d = np.abs(values - v)
                best = np.flatnonzero(d == d.min())
                code = int(best[0]) if len(best) == 1 or best[0] % 2 == 0 else int(best[1])
                codes[t, c] = code | (0x80 if np.signbit(x[t, c]) else 0)
    return codes, scale


def bf16(x):
    bits = x.view(np.uint32)
    return (
        ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16),
        np.empty(0, F16),
    )


FORMATS = {
    "f16": lambda x: (x.astype(F16), np.empty(0, F16)),
    "bf16": bf16,
    "fp8_e4m3": fp8_e4m3,
    "int8": int8,
    "int4_g32": int4_g32,
    "int2_c64": lambda x: per_channel(x, 2, 64, 70),
    "int3_c64": lambda x: per_channel(x, 3, 64),
    "int4_c64": lambda x: per_channel(x, 4, 64),
    "int5_c64": lambda x: per_channel(x, 5, 64),
    "int6_c64": lambda x: per_channel(x, 6, 64),
    "int8_c64": lambda x: per_channel(x, 8, 64),
    "int4_c32": lambda x: per_channel(x, 4, 32),
    "int2_c32": lambda x: per_channel(x, 2, 32, 75),
    "int4_a32": lambda x: per_token(x, 4, 32),
    "int2_a32": lambda x: per_token(x, 2, 32, 75),
}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    x = block()
    for name, encode in FORMATS.items():
        codes, parameters = encode(x)
        lines = [
            x.astype(F16).tobytes().hex(),
            codes.tobytes().hex(),
            parameters.astype(F16).tobytes().hex(),
        ]
        (out / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")


main()
