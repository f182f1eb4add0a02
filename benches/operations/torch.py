"""Runs the cases of this benchmark with PyTorch, with the same names, shapes and JSON format.

    python3 torch.py --json torch.json

Products and convolutions of f32 are computed without TF32; the field tf32_us is the time of convolutions with TF32,
cuDNN's default. Attention consists of separate operations, as in Candle; the field sdpa_us is the time of
scaled_dot_product_attention. The model uses eager operations; the field cudagraph_us is a decoding step as a CUDA graph.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import sys
import time

# This file has the name of the package torch, and Python searches the script's folder first.
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

import torch
import torch.nn.functional as F

SAMPLES = 10
WARM_UP_S = 0.06
MEASUREMENT_S = 0.2
HOST_TIME_S = 0.02
M = 1 << 20
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NOTE = "NVIDIA, for development: no AMD figure"

device = torch.device("cuda")


class Scale:
    def __init__(self, name):
        self.name = name

    def __call__(self, *full):
        dims = [self.dim(n) for n in full]
        return dims[0] if len(dims) == 1 else dims

    def dim(self, full):
        if self.name == "full" or full <= 4:
            return full
        root = math.isqrt(full)
        return root + root % 2


def size_name(n):
    return f"{n // M}M" if n % M == 0 else f"{n // 1024}K" if n % 1024 == 0 else str(n)


def bytes_name(n):
    return f"{n // M}MiB" if n % M == 0 else f"{n}B"


def by_x(*dims):
    return "x".join(map(str, dims))


def timed(work, count):
    start = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e6


def measure(work, smoke):
    """Returns microseconds per operation: the median of batches with one wait each, and the host time to enqueue it."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    if smoke:
        return timed(work, 1), None
    count, start = 1, time.perf_counter()
    while time.perf_counter() - start < WARM_UP_S:
        us = timed(work, count)
        count *= 2
    count = max(1, math.ceil(MEASUREMENT_S * 1e6 / SAMPLES / us))
    us = statistics.median(timed(work, count) for _ in range(SAMPLES))
    enqueued = 16 if us < 100 else 1
    rounds = min(100, max(3, int(HOST_TIME_S * 1e6 / (us * enqueued))))
    host = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(enqueued):
            work()
        host.append((time.perf_counter() - start) / enqueued * 1e6)
    torch.cuda.synchronize()
    return us, statistics.median(host)


class Cases:
    """List of cases; `make` returns the work, or a dict with the work for each field of the result."""

    def __init__(self, scale):
        self.scale, self.list = scale, []

    def add(self, group, case, dtype, shape, make, bytes=None, flops=None):
        self.list.append((group, case, dtype, str(shape), make, bytes, flops))

    def op(self, group, case, dtype, shape, operands, function, **amounts):
        def make():
            tensors = [operand() for operand in operands]
            return lambda: function(*tensors)

        self.add(group, case, dtype, shape, make, **amounts)


def rand(dtype, *dims):
    return lambda: torch.randn(*dims, device=device, dtype=FLOATS[dtype])


def below(bound, *dims, dtype=torch.int64):
    return lambda: torch.randint(0, bound, dims, device=device, dtype=dtype)


def width_of(dtype):
    return 4 if dtype == "f32" else 2


def launches(cases):
    s, f = cases.scale, "f32"
    tiny = lambda *args: cases.op("launch", *args)
    tiny("launch_tiny_strided_copy", f, "4x4", [rand(f, 4, 4)], lambda x: x.t().contiguous())
    tiny("launch_tiny_sum", f, "16x16", [rand(f, 16, 16)], lambda x: x.sum(1))
    tiny("launch_tiny_add", f, 16, [rand(f, 16), rand(f, 16)], torch.add)
    tiny("launch_tiny_broadcast_add", f, "4x4+4", [rand(f, 4, 4), rand(f, 4)], torch.add)
    tiny("launch_tiny_matmul", f, "16x16x16", [rand(f, 16, 16), rand(f, 16, 16)], torch.matmul)
    tiny("launch_tiny_zeros", f, 16, [], lambda: torch.zeros(16, device=device))
    tiny("scalar_to_device", f, 1, [], lambda: torch.tensor(1.0, device=device))
    tiny("scalar_to_host", f, 1, [lambda: torch.tensor(1.0, device=device)], lambda x: x.item())

    def add_and_wait(x, y):
        total = x + y
        torch.cuda.synchronize()
        return total

    for n in (s(M), s(64 * M)):
        operands = [rand(f, n), rand(f, n)]
        cases.op("launch", "add_sync_each", f, size_name(n), operands, add_and_wait, bytes=12 * n)
    n = s(64 * M)
    shape, ones = bytes_name(4 * n), lambda: torch.ones(n)
    on_device = lambda: torch.ones(n, device=device)
    cases.op("copies", "device_copy", f, shape, [rand(f, n)], torch.clone, bytes=8 * n)
    cases.op("copies", "zeros", f, shape, [], lambda: torch.zeros(n, device=device), bytes=4 * n)
    cases.op("copies", "host_to_device", f, shape, [ones], lambda x: x.to(device), bytes=4 * n)
    cases.op("copies", "device_to_host", f, shape, [on_device], lambda x: x.cpu(), bytes=4 * n)


def elementwise(cases):
    s = cases.scale
    unary = {
        "exp": torch.exp,
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "tanh": torch.tanh,
        # Two operations, since PyTorch has no kernel for it.
        "affine": lambda x: x * 1.5 + 0.5,
    }

    def binary(name, function, d, size):
        n = s(size)
        operands = [rand(d, n), rand(d, n)]
        cases.op("elementwise", name, d, size_name(n), operands, function, bytes=3 * n * width_of(d))

    for d in FLOATS:
        for size in (M, 64 * M):
            binary("add", torch.add, d, size)
            binary("mul", torch.mul, d, size)
            n = s(size)
            for name, function in unary.items():
                amount = 2 * n * width_of(d)
                cases.op("elementwise", name, d, size_name(n), [rand(d, n)], function, bytes=amount)
        dims = s(12289, 3001)
        amount = 2 * math.prod(dims) * width_of(d)
        clamp = lambda x: x.clamp(-0.5, 0.5)
        cases.op("elementwise", "clamp", d, by_x(*dims), [rand(d, *dims)], clamp, bytes=amount)
    for d in ("f32", "f16"):
        for size in (1 << 10, 4 << 10, 16 << 10, 256 << 10, 4 * M, 16 * M):
            binary("add", torch.add, d, size)
    n = s(64 * M)
    for source, to in (("f32", "f16"), ("f32", "bf16"), ("f16", "f32"), ("bf16", "f32")):
        amount = n * (width_of(source) + width_of(to))
        cast = lambda x, to=FLOATS[to]: x.to(to)
        cases.op("elementwise", f"to_dtype_{to}", source, size_name(n), [rand(source, n)], cast, bytes=amount)


def copies(cases):
    n = cases.scale(4096)
    heads = cases.scale(1, 2048, 32, 128)
    square = by_x(n, n)
    for d in FLOATS:
        size, x = n * n * width_of(d), rand(d, n, n)
        mask = lambda: torch.rand(n, n, device=device) < 0.5
        many = math.prod(heads) * width_of(d)
        odd, planes = cases.scale(16, 12, 197, 197), cases.scale(64, 513, 1023)
        one = [odd[0], 1, 1, odd[3]]
        padded = planes[0] * planes[1] * (2 * planes[2] + 2) * width_of(d)
        for group, case, shape, operands, function, amount in (
            ("broadcast", "add_broadcast_row", f"{square}+{n}", [x, rand(d, n)], torch.add, 2 * size),
            ("broadcast", "mul_broadcast_col", f"{square}*{n}x1", [x, rand(d, n, 1)], torch.mul, 2 * size),
            (
                "broadcast",
                "add_broadcast_odd",
                f"{by_x(*odd)}+{by_x(*one)}",
                [rand(d, *odd), rand(d, *one)],
                torch.add,
                2 * math.prod(odd) * width_of(d),
            ),
            ("copies", "pad_with_zeros", by_x(*planes), [rand(d, *planes)], lambda x: F.pad(x, (1, 1)), padded),
            ("copies", "transpose_contiguous", square, [x], lambda x: x.t().contiguous(), 2 * size),
            ("copies", "add_transposed", square, [x, x], lambda x, y: x + y.t(), 3 * size),
            (
                "copies",
                "heads_transpose_contiguous",
                by_x(*heads),
                [rand(d, *heads)],
                lambda x: x.transpose(1, 2).contiguous(),
                2 * many,
            ),
            (
                "copies",
                "narrow_contiguous",
                square,
                [x],
                lambda x: x.narrow(1, n // 4, n // 2).contiguous(),
                size,
            ),
            ("copies", "copy", square, [x], torch.clone, 2 * size),
            ("copies", "where_cond", square, [mask, x, x], torch.where, 3 * size + n * n),
            ("copies", "gt", square, [x, x], torch.gt, 2 * size + n * n),
            ("copies", "cat_dim0", f"2x{square}", [x, x], lambda x, y: torch.cat((x, y), 0), 4 * size),
            ("copies", "cat_dim1", f"2x{square}", [x, x], lambda x, y: torch.cat((x, y), 1), 4 * size),
        ):
            cases.op(group, case, d, shape, operands, function, bytes=amount)


def rope(x, cos, sin):
    """Rotates the halves of rows in eager operations, since PyTorch has no kernel for it."""
    half = x.shape[-1] // 2
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rope_i(x, cos, sin):
    """Rotates pairs of neighbours in eager operations."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rows(cases):
    s = cases.scale
    square, tall, logits = s(4096, 4096), s(16384, 4096), s(1, 32000)
    for d in FLOATS:
        for group, case, dims, function, passes in (
            ("reductions", "sum_last", square, lambda x: x.sum(-1), 1),
            ("reductions", "sum_last", tall, lambda x: x.sum(-1), 1),
            ("reductions", "sum_dim0", square, lambda x: x.sum(0), 1),
            ("reductions", "sum_all", square, torch.sum, 1),
            ("reductions", "max_last", square, lambda x: x.amax(-1), 1),
            ("reductions", "argmax_last", square, lambda x: x.argmax(-1), 1),
            ("reductions", "argmax_last", logits, lambda x: x.argmax(-1), 1),
            ("softmax and norms", "softmax_last", logits, lambda x: x.softmax(-1), 2),
            ("softmax and norms", "softmax_last", square, lambda x: x.softmax(-1), 2),
            ("softmax and norms", "softmax_last", tall, lambda x: x.softmax(-1), 2),
            ("softmax and norms", "softmax_last", s(32768, 128), lambda x: x.softmax(-1), 2),
            ("softmax and norms", "log_softmax", square, lambda x: x.log_softmax(-1), 2),
        ):
            amount = passes * math.prod(dims) * width_of(d)
            cases.op(group, case, d, by_x(*dims), [rand(d, *dims)], function, bytes=amount)
        for dims in (s(64, 197, 768), s(33, 301, 1517)):
            for case, function in (("sum_dim1", lambda x: x.sum(1)), ("max_dim1", lambda x: x.amax(1))):
                amount = math.prod(dims) * width_of(d)
                cases.op("reductions", case, d, by_x(*dims), [rand(d, *dims)], function, bytes=amount)
        norms = "softmax and norms"
        for dims in (square, tall, s(1, 4096)):
            operands, amount = [rand(d, *dims), rand(d, dims[1])], 2 * math.prod(dims) * width_of(d)
            norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5)
            cases.op(norms, "rms_norm", d, by_x(*dims), operands, norm, bytes=amount)
        for dims in (square, tall):
            operands = [rand(d, *dims), rand(d, dims[1]), rand(d, dims[1])]
            norm = lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)
            amount = 2 * math.prod(dims) * width_of(d)
            cases.op(norms, "layer_norm", d, by_x(*dims), operands, norm, bytes=amount)
        dims = s(1, 32, 2048, 128)
        _, heads, length, width = dims
        operands = [rand(d, *dims), rand(d, length, width // 2), rand(d, length, width // 2)]
        amount = (2 * heads + 1) * length * width * width_of(d)
        for case, function in (("rope", rope), ("rope_i", rope_i)):
            cases.op(norms, case, d, by_x(*dims), operands, function, bytes=amount)


def indexing(cases):
    s = cases.scale
    n, added, (vocabulary, width) = s(4096), s(2048), s(32000, 4096)
    for d in FLOATS:
        size = width_of(d)
        select = lambda x, ids: x.index_select(0, ids)
        for case, kind, selected in (
            ("index_select", torch.int32, s(2048)),
            ("index_select", torch.int32, 1),
            ("index_select_i64", torch.int64, s(2048)),
        ):
            operands = [rand(d, vocabulary, width), below(vocabulary, selected, dtype=kind)]
            amount = 2 * selected * width * size if selected > 1 else None
            shape = f"{vocabulary}x{width}[{selected}]"
            cases.op("indexing", case, d, shape, operands, select, bytes=amount)
        shape, ids = f"{n}x{n} dim1", below(n, n, n)
        # Both use 64-bit indices, since PyTorch's gather supports no others.
        for case, index_size in (("gather", 4), ("gather_i64", 8)):
            amount = n * n * (2 * size + index_size)
            gather = lambda x, ids: x.gather(1, ids)
            cases.op("indexing", case, d, shape, [rand(d, n, n), ids], gather, bytes=amount)
        operands = [rand(d, n, n), below(n, added), rand(d, added, n)]
        add = lambda x, ids, y: x.index_add(0, ids, y)
        amount = (2 * n * n + 2 * added * n) * size
        cases.op("indexing", "index_add", d, f"{n}x{n}[{added}]", operands, add, bytes=amount)
        operands, amount = [rand(d, n, n), ids, rand(d, n, n)], n * n * (3 * size + 4)
        scatter = lambda x, ids, y: x.scatter_add(1, ids, y)
        cases.op("indexing", "scatter_add", d, shape, operands, scatter, bytes=amount)
        dims = s(511, 2047)
        operands, amount = [rand(d, *dims), below(dims[0], *dims), rand(d, *dims)], math.prod(dims) * (3 * size + 4)
        for case, function in (
            ("scatter", lambda x, ids, y: x.scatter(0, ids, y)),
            ("scatter_add", lambda x, ids, y: x.scatter_add(0, ids, y)),
        ):
            cases.op("indexing", case, d, f"{by_x(*dims)} dim0", operands, function, bytes=amount)
        for dims in (s(1024, 1024), s(64, 8192)):
            cases.op("sort", "arg_sort", d, by_x(*dims), [rand(d, *dims)], lambda x: x.argsort(-1))
        dims = s(1024, 1024)
        amount = 2 * math.prod(dims) * size
        cases.op("sort", "cumsum", d, by_x(*dims), [rand(d, *dims)], lambda x: x.cumsum(1), bytes=amount)
    n = s(64 * M)
    for case, draw in (("rand_uniform", torch.rand), ("rand_normal", torch.randn)):
        cases.op("random", case, "f32", size_name(n), [], lambda draw=draw: draw(n, device=device), bytes=4 * n)


def with_tf32(d, operands, function):
    """Returns the work; for f32 also the field tf32_us, for which `run` enables TF32."""

    def make():
        tensors = [operand() for operand in operands]
        work = lambda: function(*tensors)
        return {"us": work, "tf32_us": work} if d == "f32" else work

    return make


def conv(cases):
    s = cases.scale
    for d in FLOATS:
        for full in ((8, 64, 128, 64, 3), (8, 64, 128, 64, 1), (1, 320, 320, 64, 3), (1, 320, 320, 128, 3)):
            b, c, o, side, k = s(*full)
            operands = [rand(d, b, c, side, side), rand(d, o, c, k, k)]
            make = with_tf32(d, operands, lambda x, w, k=k: F.conv2d(x, w, padding=k // 2))
            shape, flops = f"b{b} c{c} {side}x{side} k{k} o{o}", 2 * b * o * side * side * c * k * k
            cases.add("conv", "conv2d", d, shape, make, flops=flops)
        for *full, stride, groups in ((8, 256, 512, 56, 2, 1), (8, 256, 256, 56, 1, 32)):
            b, c, o, side = s(*full)
            groups, out = 1 if groups == 1 else c // 8, -(-side // stride)
            operands = [rand(d, b, c, side, side), rand(d, o, c // groups, 3, 3)]
            conv2d = lambda x, w, stride=stride, groups=groups: F.conv2d(x, w, stride=stride, padding=1, groups=groups)
            shape, flops = f"b{b} c{c} {side}x{side} k3 s{stride} g{groups} o{o}", 2 * b * o * out * out * c // groups * 9
            cases.add("conv", "conv2d", d, shape, with_tf32(d, operands, conv2d), flops=flops)
        b, c, o, length = s(1, 80, 512, 3000)
        make = with_tf32(d, [rand(d, b, c, length), rand(d, o, c, 3)], lambda x, w: F.conv1d(x, w, padding=1))
        flops = 2 * b * o * length * c * 3
        cases.add("conv", "conv1d", d, f"b{b} c{c} {length} k3 o{o}", make, flops=flops)

        b, c, o, side = s(8, 64, 32, 64)
        image, shape = rand(d, b, c, side, side), f"b{b} c{c} {side}x{side}"
        bytes = b * c * side * side * width_of(d)
        depthwise = lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0])
        make = with_tf32(d, [image, rand(d, c, 1, 3, 3)], depthwise)
        cases.add("conv", "conv2d_depthwise", d, f"{shape} k3", make, bytes=2 * bytes)
        transposed = lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1)
        make = with_tf32(d, [image, rand(d, c, o, 4, 4)], transposed)
        flops = 2 * b * c * side * side * o * 16
        cases.add("conv", "conv_transpose2d", d, f"{shape} k4 s2 o{o}", make, flops=flops)
        for case, pool in (("max_pool2d", F.max_pool2d), ("avg_pool2d", F.avg_pool2d)):
            half = lambda x, pool=pool: pool(x, 2)
            cases.op("conv", case, d, f"{shape} k2", [image], half, bytes=bytes + bytes // 4)
        double = lambda x: F.interpolate(x, scale_factor=2, mode="nearest")
        cases.op("conv", "upsample_nearest2d", d, f"{shape} x2", [image], double, bytes=5 * bytes)


def attention(d, heads, length, width):
    """Returns attention as separate operations and as scaled_dot_product_attention."""

    def make():
        q, k, v = (torch.randn(1, heads, length, width, device=device, dtype=FLOATS[d]) for _ in range(3))
        mask = torch.full((length, length), -math.inf, device=device, dtype=FLOATS[d]).triu(1)
        scale = 1 / math.sqrt(width)
        return {
            "us": lambda: (q @ k.transpose(-2, -1) * scale + mask).softmax(-1) @ v,
            "sdpa_us": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        }

    return make


def products(cases):
    s = cases.scale
    for d in FLOATS:
        size = width_of(d)
        for n in map(s, (128, 256, 512, 1024, 2048, 4096)):
            operands = [rand(d, n, n), rand(d, n, n)]
            cases.op("matmul", "matmul", d, by_x(n, n, n), operands, torch.matmul, flops=2 * n * n * n)
        for rows in (1, 2, 3, 8, 16, 512):
            for inputs, outputs in ((4096, 4096), (4096, 11008), (11008, 4096)):
                if (rows, inputs) == (512, 11008) or (rows in (2, 3, 8, 16) and (inputs, outputs) != (4096, 4096)):
                    continue
                m, k, n = s(rows, inputs, outputs)
                amounts = {"bytes": k * n * size} if rows <= 16 else {"flops": 2 * m * k * n}
                operands = [rand(d, m, k), rand(d, n, k)]
                cases.op("matmul", "linear", d, by_x(m, k, n), operands, F.linear, **amounts)
        heads, length, width = s(32, 2048, 128)
        whole, flops = rand(d, heads, length, width), 2 * heads * length * length * width
        scores = lambda q, k: q @ k.transpose(1, 2)
        shape = by_x(heads, length, width, length)
        cases.op("matmul", "bmm_qkt", d, shape, [whole, whole], scores, flops=flops)
        shape = by_x(heads, length, length, width)
        cases.op("matmul", "bmm_pv", d, shape, [rand(d, heads, length, length), whole], torch.matmul, flops=flops)
        amount = heads * length * width * size
        operands = [rand(d, heads, 1, width), whole]
        shape = by_x(heads, 1, width, length)
        cases.op("matmul", "bmm_qkt_decode", d, shape, operands, scores, bytes=amount)
        make = attention(d, heads, length, width)
        shape = by_x(1, heads, length, width)
        cases.add("attention", "attention_causal", d, shape, make, flops=2 * flops)
        sdpa = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        for width in map(s, (64, 128, 256)):
            width += -width % 8
            operands, flops = [rand(d, 1, heads, length, width)] * 3, 2 * heads * length * length * width
            shape = by_x(1, heads, length, width)
            cases.op("attention", "flash_attn_causal", d, shape, operands, sdpa, flops=flops)
        for batch, heads, key_heads, keys in ((1, 32, 32, 4096), (1, 32, 8, 4096), (8, 32, 8, 4096)):
            keys, width = s(keys), 128
            kv_operand, gqa = rand(d, batch, key_heads, keys, width), heads != key_heads
            sdpa = lambda q, k, v, gqa=gqa: F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)
            shape, bytes = f"{batch}x{heads}/{key_heads}x{keys}x{width}", 2 * batch * key_heads * keys * width * size
            operands = [rand(d, batch, heads, 1, width), kv_operand, kv_operand]
            cases.op("attention", "flash_attn_decode", d, shape, operands, sdpa, bytes=bytes)


class Llama:
    """Model of model.rs: attention in f32; the cache is concatenated, or static for a CUDA graph."""

    FULL = dict(hidden=2048, intermediate=5632, vocabulary=32000, layers=16, heads=32, kv=4, prompt=512, decoded=64)
    SMOKE = dict(hidden=64, intermediate=96, vocabulary=128, layers=2, heads=4, kv=2, prompt=16, decoded=4)

    def __init__(self, dtype, setup):
        self.__dict__.update(setup)
        self.dtype = FLOATS[dtype]
        self.width = self.hidden // self.heads
        kv = self.width * self.kv
        weight = lambda *dims: (torch.randn(*dims, device=device) * 0.02).to(self.dtype)
        norm = lambda: (1 + torch.randn(self.hidden, device=device) * 0.02).to(self.dtype)
        h, b = self.hidden, self.intermediate
        self.embedding, self.head, self.last_norm = weight(self.vocabulary, h), weight(self.vocabulary, h), norm()
        shapes = dict(q=(h, h), k=(kv, h), v=(kv, h), o=(h, h), gate=(b, h), up=(b, h), down=(h, b))
        self.blocks = [
            {name: weight(*shape) for name, shape in shapes.items()} | {"norm1": norm(), "norm2": norm()}
            for _ in range(self.layers)
        ]
        positions = torch.arange(2 * (self.prompt + self.decoded), device=device)
        frequencies = 10000.0 ** (-torch.arange(0, self.width, 2, device=device) / self.width)
        angles = positions[:, None] * frequencies
        self.cos, self.sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        self.tokens = (torch.arange(self.prompt, device=device) * 31 % self.vocabulary)[None]

    def attend(self, q, k, v, mask, fused):
        repeat = self.heads // self.kv
        if fused and mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
        if fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        q, k, v = q.float(), k.float(), v.float()
        scores = q @ k.transpose(2, 3) / math.sqrt(self.width)
        if mask is None and q.shape[2] > 1:
            above = torch.ones(q.shape[2], k.shape[2], device=device, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, -math.inf)
        return (scores.softmax(-1) @ v).to(self.dtype)

    def forward(self, tokens, positions, store, mask=None, fused=False):
        """Returns the logits of the last position. `store` caches a layer's keys and values and returns all cached ones."""
        length = tokens.shape[1]
        cos, sin = self.cos[positions], self.sin[positions]
        x = F.embedding(tokens, self.embedding)
        norm = lambda x, w: F.rms_norm(x, (self.hidden,), w, 1e-5)
        for number, w in enumerate(self.blocks):
            y = norm(x, w["norm1"])
            heads = lambda name, n: F.linear(y, w[name]).view(1, length, n, self.width).transpose(1, 2)
            q, k, v = heads("q", self.heads), heads("k", self.kv), heads("v", self.kv)
            k, v = store(number, rope(k, cos, sin), v)
            y = self.attend(rope(q, cos, sin), k, v, mask, fused)
            x = x + F.linear(y.transpose(1, 2).reshape(1, length, self.hidden), w["o"])
            y = norm(x, w["norm2"])
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
        return F.linear(norm(x[:, -1], self.last_norm), self.head).float()

    def prefill(self, waits, fused=False):
        def work():
            self.forward(self.tokens, slice(0, self.prompt), lambda _, k, v: (k, v), fused=fused)
            if waits:
                torch.cuda.synchronize()

        return work

    def after_prompt(self):
        cache = {}

        def keep(number, k, v):
            cache[number] = (k, v)
            return k, v

        logits = self.forward(self.tokens, slice(0, self.prompt), keep)
        return cache, logits.argmax(-1)[None]

    def decode(self, decoded, waits, fused=False):
        filled, first = self.after_prompt()
        state = dict(cache=dict(filled), token=first, step=0)

        def join(number, k, v):
            before = state["cache"][number]
            state["cache"][number] = (torch.cat((before[0], k), 2), torch.cat((before[1], v), 2))
            return state["cache"][number]

        def work():
            if state["step"] == decoded:
                state.update(cache=dict(filled), token=first, step=0)
            position = self.prompt + state["step"]
            logits = self.forward(state["token"], slice(position, position + 1), join, fused=fused)
            state["token"], state["step"] = logits.argmax(-1)[None], state["step"] + 1
            if waits:
                state["token"].item()

        return work

    def decode_graph(self, decoded, waits):
        """Returns a decoding step with a static cache as a CUDA graph."""
        filled, first = self.after_prompt()
        length = self.prompt + decoded
        static = {n: [torch.zeros(1, self.kv, length, self.width, device=device, dtype=self.dtype) for _ in "kv"]
                  for n in filled}  # fmt: skip
        for number, both in filled.items():
            for kept, part in zip(static[number], both):
                kept[:, :, : self.prompt] = part
        position = torch.tensor([self.prompt], device=device)
        token, seen = first.clone(), torch.arange(length, device=device)

        def store(number, k, v):
            for kept, part in zip(static[number], (k, v)):
                kept.index_copy_(2, position, part)
            return static[number]

        def step():
            mask = torch.zeros(1, 1, 1, length, device=device, dtype=self.dtype)
            mask = mask.masked_fill(seen > position, -math.inf)
            logits = self.forward(token, position, store, mask=mask, fused=True)
            token.copy_(logits.argmax(-1)[None])
            position.copy_(self.prompt + (position + 1 - self.prompt) % decoded)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def work():
            graph.replay()
            if waits:
                token.item()

        # The graph uses these tensors without owning them, so they must stay alive.
        work.inputs = (position, seen, static)
        return work


def amounts(dtype, hidden, intermediate, vocabulary, layers, heads, kv, prompt, decoded):
    """Returns the FLOPs of the prefill, and the bytes of a decoding step."""
    kv_width = hidden // heads * kv
    weights, logits = layers * hidden * (2 * hidden + 2 * kv_width + 3 * intermediate), hidden * vocabulary
    flops = 2 * prompt * weights + 2 * layers * hidden * prompt**2 + 2 * logits
    cached = 2 * layers * kv_width * (prompt + decoded // 2)
    return flops, (weights + logits + cached) * width_of(dtype)


def models(cases):
    setup = Llama.FULL if cases.scale.name == "full" else Llama.SMOKE
    prompt, decoded = setup["prompt"], setup["decoded"]
    for d in ("f16", "bf16"):
        model = lambda d=d: Llama(d, setup)
        flops, bytes = amounts(d, **setup)
        for case, waits in (("llama_prefill", False), ("llama_prefill_sync_each", True)):

            def make(model=model, waits=waits):
                m = model()
                return {"us": m.prefill(waits), "sdpa_us": m.prefill(waits, fused=True)}

            cases.add("model", case, d, prompt, make, flops=flops)
        for case, count, waits in (
            ("llama_decode_token", decoded, True),
            ("llama_decode_token_nosync", decoded, False),
            ("llama_decode_one", 1, False),
        ):

            def make(model=model, count=count, waits=waits):
                m = model()
                works = {"us": m.decode(count, waits), "sdpa_us": m.decode(count, waits, fused=True)}
                if count > 1:
                    works["cudagraph_us"] = m.decode_graph(count, waits)
                return works

            cases.add("model", case, d, f"{count} after {prompt}", make, bytes=bytes)


def run(cases, groups, filters):
    smoke, results, failed = cases.scale.name == "smoke", [], []
    for group, case, dtype, shape, make, bytes, flops in cases.list:
        has_name = not filters or any(words in f"{case} {dtype} {shape}" for words in filters)
        if not has_name or (groups and group not in groups):
            continue
        row = dict(group=group, case=case, dtype=dtype, shape=shape, us=None, host_us=None, bytes=bytes, flops=flops)
        label = f"{group}: {case} {dtype} {shape}"
        try:
            works = make()
            for field, work in works.items() if isinstance(works, dict) else [("us", works)]:
                torch.backends.cudnn.allow_tf32 = field == "tf32_us"
                us, host = measure(work, smoke)
                row[field] = round(us, 3)
                if field == "us":
                    row["host_us"] = host and round(host, 3)
            print(label, f"{row['us']:.2f} us", flush=True)
        except Exception as error:  # the other cases continue
            print(f"{label} failed: {error}", flush=True)
            failed.append(label)
        if row["us"] is not None:
            results.append(row)
        works = work = None
    print(f"bench: {len(results) + len(failed)} cases, {len(failed)} failed")
    return results, failed


def main():
    parser = argparse.ArgumentParser(description="Run the cases of this benchmark with PyTorch")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--group", action="append", metavar="NAME")
    parser.add_argument("filters", nargs="*", metavar="WORDS", help="words of `case dtype shape`; one of them must match")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU")
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = Cases(Scale(args.scale))
    for add in (launches, elementwise, copies, rows, indexing, conv, products, models):
        add(cases)
    start = time.perf_counter()
    results, failed = run(cases, args.group, args.filters)
    print(f"{time.perf_counter() - start:.0f} s")
    properties = torch.cuda.get_device_properties(0)
    is_amd = torch.version.hip is not None
    arch = properties.gcnArchName if is_amd else f"sm_{properties.major}{properties.minor}"
    versions = dict(torch=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)
    versions["cudnn"] = torch.backends.cudnn.version()
    for module in ("amdgpu", "nvidia"):
        if os.path.exists(path := f"/sys/module/{module}/version"):
            with open(path) as file:
                versions[module] = file.read().strip()
    meta = dict(device="torch", driver="-", gpu=torch.cuda.get_device_name(), arch=arch)
    meta |= dict(note=None if is_amd else NOTE, date=datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    meta |= dict(versions=versions, scale=args.scale)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(dict(meta=meta, results=results), file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
