#!/usr/bin/env python3
"""cuDNN's attention of one query per sequence in bf16, through PyTorch, on bench_attention_cuda's
shapes: the time of one call in a CUDA graph over data larger than the device's cache, medians.

K and V lie in one piece for each sequence: no pages, nothing quantized. Sequences of unequal length
and heads of 64 are left out.
"""

import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

RUNS = 60
WORKING_SET_BYTES = 1 << 30
# name, sequences, tokens, query heads, KV heads, head_dim
SHAPES = (
    ("32 x 8k", 32, 8192, 32, 8, 128),
    ("13 x 32k", 13, 32768, 32, 8, 128),
    ("64 x 4k", 64, 4096, 32, 8, 128),
    ("128 x 1k", 128, 1024, 32, 8, 128),
    ("1 x 32k", 1, 32768, 32, 8, 128),
    ("1 x 128k", 1, 131072, 32, 8, 128),
    ("64/8 heads 128 x 2k", 128, 2048, 64, 8, 128),
)


def graph_us(work):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        times_us = []
        for run in range(RUNS + 5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            if run >= 5:
                times_us.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times_us)


def measure(sequences, tokens, q_heads, kv_heads, head_dim):
    cache_bytes = 4 * sequences * tokens * kv_heads * head_dim
    layers = max(1, min(32, WORKING_SET_BYTES // cache_bytes + 1))

    def random(heads, length):
        return torch.randn(sequences, heads, length, head_dim, device="cuda", dtype=torch.bfloat16)

    q = random(q_heads, 1)
    caches = [(random(kv_heads, tokens), random(kv_heads, tokens)) for _ in range(layers)]

    def all_layers():
        for k, v in caches:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return graph_us(all_layers) / layers, cache_bytes


def main():
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}")
    print(f"{'shape':26} {'us':>9} {'GB':>9} {'TB/s':>7}")
    for name, *shape in SHAPES:
        us, cache_bytes = measure(*shape)
        print(f"{name:26} {us:9.1f} {1e-9 * cache_bytes:9.4f} {1e-6 * cache_bytes / us:7.2f}",
              flush=True)
        torch.cuda.empty_cache()


main()
