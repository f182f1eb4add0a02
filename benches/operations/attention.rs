//! Attention as separate operations and as flash attention, for prefill and decode.
use crate::case::{Cases, FLOATS, causal_mask, dims_name, random};
use candle_core::{D, Tensor};
use candle_flash_attn::flash_attn;
use candle_nn::ops;

const ATTENTION: &str = "attention";
/// Batch size, query heads, key heads, number of keys.
const DECODE: [[usize; 4]; 3] = [[1, 32, 32, 4096], [1, 32, 8, 4096], [8, 32, 8, 4096]];
const WIDTH: usize = 128;

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
        // Flash attention does not support the head width of the smoke scale.
        let width = width.next_multiple_of(8);
        let all = || random(dtype, [1, length, heads, width]);
        let fused = move |[q, k, v]: &[Tensor; 3]| flash_attn(q, k, v, scale as f32, true);
        let labels = [ATTENTION, "flash_attn_causal"];
        // With a causal mask, half of the scores are computed.
        let (flops, shape) = (2 * heads * length * length * width, dims_name(&[1, heads, length, width]));
        cases.operation(labels, dtype, shape, [all(), all(), all()], fused).flops(flops).only_rocm = true;

        for [batch, heads, key_heads, keys] in DECODE {
            let keys = cases.scale.dim(keys);
            let cached = || random(dtype, [batch, keys, key_heads, WIDTH]);
            let operands = [random(dtype, [batch, 1, heads, WIDTH]), cached(), cached()];
            let shape = format!("{batch}x{heads}/{key_heads}x{keys}x{WIDTH}");
            let bytes = 2 * batch * keys * key_heads * WIDTH * dtype.size_in_bytes();
            let labels = [ATTENTION, "flash_attn_decode"];
            cases.operation(labels, dtype, shape, operands, fused).bytes(bytes).only_rocm = true;
        }
    }
}
