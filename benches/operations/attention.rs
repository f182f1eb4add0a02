//! Attention as separate operations and as flash attention, for prefill and decode.
use crate::case::{Cases, FLOATS, M, Scale, Work, causal_mask, dims_name, random};
use candle_core::{D, DType, Device, Result, Tensor};
use candle_flash_attn::{flash_attn, flash_attn_varlen_paged_windowed};
use candle_nn::ops;
use std::hint::black_box;

const ATTENTION: &str = "attention";
/// Batch size, query heads, key heads, number of keys.
const DECODE: [[usize; 4]; 3] = [[1, 32, 32, 4096], [1, 32, 8, 4096], [8, 32, 8, 4096]];
const WIDTH: usize = 128;
/// Query heads and key heads of paged decoding, and rows of a page.
const PAGED_HEADS: [usize; 2] = [32, 8];
const PAGE: usize = 16;
/// Maximum elements of keys and values of paged decoding in scale paper.
const PAPER_ELEMENTS: usize = 4 * M;

/// Returns causal attention over queries, keys and values with heads of this width.
fn fused(width: usize) -> impl Fn(&[Tensor; 3]) -> Result<Tensor> + Copy + Sync {
    let scale = 1. / (width as f32).sqrt();
    move |[q, k, v]| flash_attn(q, k, v, scale, true)
}

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        let [heads, length, width] = cases.scale.dims([32, 2048, WIDTH]);
        let flops = 4 * heads * length * length * width;
        let shape = dims_name(&[1, heads, length, width]);
        let scale = 1. / (width as f64).sqrt();
        let all = || random(dtype, [1, heads, length, width]);
        let operands = [all(), all(), all(), causal_mask(dtype, length)];
        let unfused = move |[q, k, v, mask]: &[Tensor; 4]| {
            let scores = (q.matmul(&k.transpose(D::Minus2, D::Minus1)?)? * scale)?;
            ops::softmax_last_dim(&scores.broadcast_add(mask)?)?.matmul(v)
        };
        let labels = [ATTENTION, "attention_causal"];
        cases.operation(labels, dtype, shape.as_str(), operands, unfused).flops(flops);
        for full in [64, WIDTH, 256] {
            // Widths of smaller scales are not multiples of 8, which flash attention requires.
            let width = cases.scale.dim(full).next_multiple_of(8);
            let all = || random(dtype, [1, length, heads, width]);
            let labels = [ATTENTION, "flash_attn_causal"];
            // With a causal mask, half of the scores are computed.
            let (flops, shape) = (2 * heads * length * length * width, dims_name(&[1, heads, length, width]));
            let case = cases.operation(labels, dtype, shape, [all(), all(), all()], fused(width));
            case.flops(flops).only_rocm = true;
        }

        for [batch, heads, key_heads, keys] in DECODE {
            let keys = cases.scale.dim(keys);
            let cached = || random(dtype, [batch, keys, key_heads, WIDTH]);
            let operands = [random(dtype, [batch, 1, heads, WIDTH]), cached(), cached()];
            let shape = format!("{batch}x{heads}/{key_heads}x{keys}x{WIDTH}");
            let bytes = 2 * batch * keys * key_heads * WIDTH * dtype.size_in_bytes();
            let labels = [ATTENTION, "flash_attn_decode"];
            cases.operation(labels, dtype, shape, operands, fused(WIDTH)).bytes(bytes).only_rocm = true;
        }
    }
    for width in [64, WIDTH] {
        for (batch, keys) in
            [1, 16, 64].into_iter().flat_map(|batch| [30, 512, 4096].map(|keys| (batch, keys)))
        {
            let (batch, keys) = (cases.scale.dim(batch), cases.scale.dim(keys));
            let [heads, key_heads] = PAGED_HEADS;
            let elements = 2 * batch * keys * key_heads * width;
            if cases.scale == Scale::Paper && elements > PAPER_ELEMENTS {
                continue;
            }
            let shape = format!("{batch}x{heads}/{key_heads}x{keys}x{width}");
            let prepare = move |device: &Device| paged_decode(device, batch, keys, width);
            let case =
                cases.work([ATTENTION, "flash_attn_paged_decode"], DType::F16.as_str(), shape, prepare);
            case.bytes(elements * DType::F16.size_in_bytes()).only_rocm = true;
            case.elements = elements;
        }
    }
}

/// Attention of one query per sequence over the pages of a cache, in f16.
fn paged_decode(device: &Device, batch: usize, keys: usize, width: usize) -> Result<Work> {
    let [heads, key_heads] = PAGED_HEADS;
    let pages_each = keys.div_ceil(PAGE);
    // As the language-model worker passes it: a power of two of pages per sequence.
    let table_width = pages_each.next_power_of_two();
    let pages = batch * pages_each;
    let made = |dims: &[usize]| Tensor::randn(0f32, 1f32, dims, device)?.to_dtype(DType::F16);
    let q = made(&[batch, heads, width])?;
    let k = made(&[pages, PAGE, key_heads, width])?;
    let v = made(&[pages, PAGE, key_heads, width])?;
    // Neighbouring entries name distant pages.
    let entry = |i: usize| (i / table_width * pages_each + i % table_width % pages_each) * 7919 % pages;
    let table: Vec<u32> = (0..batch * table_width).map(|i| entry(i) as u32).collect();
    let table = Tensor::from_vec(table, (batch, table_width), device)?;
    let starts = |each: usize| Tensor::from_iter((0..=batch).map(|i| (i * each) as u32), device);
    let (rows, lengths) = (starts(1)?, starts(keys)?);
    let (max_keys, scale) = (table_width * PAGE, 1. / (width as f32).sqrt());
    Ok(Box::new(move || {
        let out = flash_attn_varlen_paged_windowed(
            &q,
            &k,
            &v,
            &rows,
            &lengths,
            &table,
            None,
            1,
            max_keys,
            scale,
            None,
            Some(0),
            PAGE,
            None,
        )?;
        drop(black_box(out));
        Ok(())
    }))
}
