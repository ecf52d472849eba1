"""Writers of safetensors and GGUF files, on the standard library alone."""

import array
import json
import os
import struct
import sys

# GGUF's numbers for types of values and of tensors.
U32, F32_VALUE, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TENSOR_TYPES = {"F32": 0, "F16": 1, "BF16": 30}


def to_bytes(numbers, kind):
    if kind == "F32":
        return struct.pack(f"<{len(numbers)}f", *numbers)
    if kind == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    words = array.array("I", struct.pack(f"={len(numbers)}f", *numbers))
    rounded = array.array("H", [(w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words])
    if sys.byteorder == "big":
        rounded.byteswap()
    return rounded.tobytes()


def safetensors(tensors):
    """tensors: [(name, shape, type, bytes)]"""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, kind, data in tensors:
        header[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors)


def unpack(data, kind):
    if kind == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if kind == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    words = [word << 16 for word in struct.unpack(f"<{len(data) // 2}H", data)]
    return list(struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *words)))


def gguf_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_text(value)
    if kind == ARRAY:
        element, items = value
        packed = b"".join(gguf_value(element, item) for item in items)
        return struct.pack("<IQ", element, len(items)) + packed
    return struct.pack({U32: "<I", 5: "<i", F32_VALUE: "<f", BOOL: "<?"}[kind], value)


def gguf(keys, tensors):
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for key, kind, value in keys:
        out += [gguf_text(key), struct.pack("<I", kind), gguf_value(kind, value)]
    offset = 0
    for name, shape, kind, data in tensors:
        out.append(gguf_text(name))
        out.append(struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        out.append(struct.pack("<IQ", TENSOR_TYPES[kind], offset))
        offset += len(data) + -len(data) % 32
    header = b"".join(out)
    parts = [header, b"\0" * (-len(header) % 32)]
    for _, _, _, data in tensors:
        parts += [data, b"\0" * (-len(data) % 32)]
    return b"".join(parts)


def write(path, data):
    # Beside its place first: two test programs may make the same files at the same time.
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def write_json(path, value):
    write(path, json.dumps(value, indent=2).encode())
