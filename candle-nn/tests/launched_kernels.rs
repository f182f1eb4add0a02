//! Tests that every built-in kernel is launched by an operation. The operations run on the software GPU, whose profile lists
//! the launched kernels.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::quantized::rocm::block_types;
use candle::quantized::{GgmlDType, QTensor};
use candle::rocm::hip_kernels::contract::{
    Element, KernelId, Product, ProductKind, Quantize, QuantizeKind, TileSide, TiledProduct, BLOCK,
    PRODUCT_TILE, SAMPLE_RESULT_WORDS, SAMPLE_SETTINGS_WORDS,
};
use candle::rocm::hip_kernels::{self, Module};
use candle::rocm::rocm_loader::DRIVER_VARIABLE;
use candle::rocm::{
    self, Attention, AttentionSequences, ExpertGroups, FusedExperts, GateActivation, LaunchConfig,
    ProductWeight, RocmDevice, RocmStorage, Router, RouterFunction,
};
use candle::DType::{self, *};
use candle::{Device, Layout, Result, Shape, Storage, Tensor, Var};
use candle_nn::encoded_cache::CacheScales;
use candle_nn::fused_attention::{append_and_attend, PagedSequences, ScoreParams};
use candle_nn::recurrent::{CausalConv, GatedDelta, SelectiveScan, Sequences};
use candle_nn::static_cache::{StaticCache, StaticCacheSize};
use candle_nn::{fused, fused_image, ops, rotary_emb, GroupNorm, Module as _};
use common::{assert_close, rocm, tensor, tolerance};
use std::collections::BTreeSet;
use std::process::Command;

const ALL: [DType; 10] = [U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3];
const INTEGERS: [DType; 5] = [U8, U32, I16, I32, I64];
const WIDER_FLOATS: [DType; 4] = [BF16, F16, F32, F64];
/// Kernels that copy elements exist for each size.
const SIZES: [DType; 4] = [U8, F16, U32, I64];
const MOVING_IDS: [DType; 3] = [U8, U32, I64];

const OPTIONS: &str = "CANDLE_ROCM_EMULATOR";

/// GPUs that together use all kernels; the kernels for quantized matrices depend on the matrix units.
const ARCHS: [&str; 3] = ["gfx1100", "gfx90a", "gfx1030"];

#[test]
fn every_kernel_is_launched_by_an_operation() {
    if rocm().as_rocm_device().unwrap().driver_name() != "emulator" {
        every_operation();
        return println!(
            "not applicable: every operation ran, but only the software GPU says which kernels did"
        );
    }
    let (built, missing): (Vec<&str>, Vec<&str>) =
        ARCHS.into_iter().partition(|arch| hip_kernels::code_object(Module::Fill, arch).is_ok());
    let launched: BTreeSet<String> = built.into_iter().flat_map(launched_on).collect();
    let shipped: BTreeSet<String> = KernelId::all().map(|kernel| kernel.name().to_string()).collect();
    let unknown: Vec<&String> = launched.difference(&shipped).collect();
    assert!(unknown.is_empty(), "launched, but not in the contract: {unknown:?}");
    if !missing.is_empty() {
        return eprintln!("not run on all: the kernels were built without {missing:?} (CANDLE_ROCM_ARCHS)");
    }
    let never: Vec<&String> = shipped.difference(&launched).collect();
    assert!(
        never.is_empty(),
        "{} of {} kernels are launched by nothing: {never:?}",
        never.len(),
        shipped.len()
    );
}

/// Returns the kernels that all operations launch on a GPU. The profile is written at the end of a process, so the
/// operations run in a separate process.
fn launched_on(arch: &str) -> Vec<String> {
    let file = std::env::temp_dir().join(format!("launched_kernels-{arch}-{}.json", std::process::id()));
    let given = std::env::var(OPTIONS).map(|options| options + ";").unwrap_or_default();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "every_operation", "--nocapture"])
        .env(OPTIONS, format!("{given}profile={}", file.display()))
        .env(DRIVER_VARIABLE, format!("emulator:{arch}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{arch}: {text}{errors}");
    let profile = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let names = profile.split("\"name\":").skip(1).filter_map(|rest| rest.split('"').nth(1));
    names.map(str::to_string).collect()
}

#[test]
#[ignore = "run by every_kernel_is_launched_by_an_operation"]
fn every_operation() {
    let device = rocm();
    type Group = fn(&Device) -> Result<()>;
    let groups: [(&str, Group); 14] = [
        ("elementwise", elementwise),
        ("moving", moving),
        ("indexing", indexing),
        ("reductions", reductions),
        ("rows", rows),
        ("sorting", sorting),
        ("sampling", sampling),
        ("windows", windows),
        ("products", products),
        ("attention", attention),
        ("appended_rows", appended_rows),
        ("recurrences", recurrences),
        ("quantizing", quantizing),
        ("experts", experts),
    ];
    for (name, group) in groups {
        group(&device).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    device.synchronize().unwrap();
}

/// Creates a tensor on the device, which also casts between all dtypes.
fn on(device: &Device, dims: &[usize], dtype: DType) -> Result<Tensor> {
    tensor(dims, F64, 1.8).abs()?.to_device(device)?.to_dtype(dtype)
}

fn is_integer(dtype: DType) -> bool {
    INTEGERS.contains(&dtype)
}

type Unary = fn(&Tensor) -> Result<Tensor>;

fn elementwise(device: &Device) -> Result<()> {
    let of_all: [Unary; 5] =
        [Tensor::sign, Tensor::abs, Tensor::relu, |x| x.affine(2.0, 1.0), |x| x.clamp(1.0, 2.0)];
    let of_floats: [Unary; 20] = [
        Tensor::neg,
        Tensor::sqr,
        Tensor::recip,
        Tensor::sqrt,
        Tensor::exp,
        Tensor::log,
        Tensor::sin,
        Tensor::cos,
        Tensor::tanh,
        Tensor::erf,
        Tensor::ceil,
        Tensor::floor,
        Tensor::round,
        Tensor::gelu,
        Tensor::gelu_erf,
        Tensor::silu,
        |x| x.elu(0.5),
        |x| x.powf(2.0),
        |x| x.rand_like(0.0, 1.0),
        |x| x.randn_like(0.0, 1.0),
    ];
    let of_pairs: [fn(&Tensor, &Tensor) -> Result<Tensor>; 12] = [
        |x, y| x + y,
        |x, y| x - y,
        |x, y| x * y,
        |x, y| x / y,
        |x, y| x.minimum(y),
        |x, y| x.maximum(y),
        |x, y| x.eq(y),
        |x, y| x.ne(y),
        |x, y| x.lt(y),
        |x, y| x.le(y),
        |x, y| x.gt(y),
        |x, y| x.ge(y),
    ];
    for dtype in ALL {
        let x = on(device, &[3, 5], dtype)?;
        let ones = Tensor::ones((3, 5), dtype, device)?;
        of_all.iter().try_for_each(|op| op(&x).map(drop))?;
        of_pairs.iter().try_for_each(|op| op(&x, &ones).map(drop))?;
        ALL.iter().try_for_each(|to| x.to_dtype(*to).map(drop))?;
        if !is_integer(dtype) {
            of_floats.iter().try_for_each(|op| op(&x).map(drop))?;
            ops::swiglu(&on(device, &[3, 6], dtype)?)?;
            fused_image::geglu(&on(device, &[3, 6], dtype)?)?;
        }
    }
    for dtype in WIDER_FLOATS {
        ops::sigmoid(&on(device, &[3, 5], dtype)?)?;
    }
    for dtype in SIZES {
        let x = on(device, &[3, 5], dtype)?;
        for condition in INTEGERS {
            on(device, &[3, 5], condition)?.where_cond(&x, &x)?;
        }
    }
    Ok(())
}

fn moving(device: &Device) -> Result<()> {
    for dtype in SIZES {
        let x = on(device, &[3, 5], dtype)?;
        x.t()?.contiguous()?;
        on(device, &[16, 16], dtype)?.t()?.contiguous()?;
        x.one_set()?;
        Tensor::cat(&[&x, &x], 1)?;
        let wide = on(device, &[16], dtype)?;
        Tensor::cat(&[&wide, &wide], 0)?;
    }
    Ok(())
}

fn indexing(device: &Device) -> Result<()> {
    // Along a long dim, the last place of each id is found first, in LDS if the destinations of some lines fit into it.
    let lengths = SIZES.map(|dtype| (100, dtype));
    for (length, dtype) in lengths.into_iter().chain([(2000, F32)]) {
        let (long, places) = (on(device, &[length, 8], dtype)?, Tensor::zeros((length, 8), U32, device)?);
        long.scatter(&places, &long, 0)?;
    }
    for ids_dtype in INTEGERS {
        let ids = Tensor::zeros(2, ids_dtype, device)?;
        let places = Tensor::zeros((2, 5), ids_dtype, device)?;
        for dtype in ALL {
            let (x, source) = (on(device, &[3, 5], dtype)?, on(device, &[2, 5], dtype)?);
            x.index_add(&ids, &source, 0)?;
            x.scatter_add(&places, &source, 0)?;
            if SIZES.contains(&dtype) && MOVING_IDS.contains(&ids_dtype) {
                x.index_select(&ids, 0)?;
                // Rows of 16 bytes and more.
                on(device, &[3, 16], dtype)?.index_select(&ids, 0)?;
                x.gather(&places, 0)?;
                x.scatter(&places, &source, 0)?;
            }
        }
    }
    Ok(())
}

/// Sums of one long row take two launches, with f32 in between for narrow floats.
fn reductions(device: &Device) -> Result<()> {
    for dtype in ALL {
        let x = on(device, &[3, 5], dtype)?;
        x.sum(1)?;
        x.min(0)?;
        x.max(1)?;
        x.argmin(1)?;
        x.argmax(0)?;
    }
    for dtype in WIDER_FLOATS {
        on(device, &[3, 5], dtype)?.cumsum(1)?;
    }
    for dtype in [BF16, F16, F32] {
        on(device, &[3, 5], dtype)?.var(1)?;
    }
    for dtype in [BF16, F16, F8E4M3] {
        Tensor::zeros(1 << 19, dtype, device)?.sum_all()?;
    }
    Ok(())
}

fn rows(device: &Device) -> Result<()> {
    for dtype in WIDER_FLOATS {
        let (x, weights) = (on(device, &[3, 8], dtype)?, on(device, &[8], dtype)?);
        ops::softmax_last_dim(&x)?;
        ops::log_softmax(&x, 1)?;
        ops::rms_norm(&x, &weights, 1e-5)?;
        ops::layer_norm(&x, &weights, &weights, 1e-5)?;
        GroupNorm::new(weights.clone(), weights, 8, 2, 1e-5)?.forward(&x.reshape((1, 8, 3))?)?;
        let (x, angles) = (on(device, &[1, 2, 3, 8], dtype)?, on(device, &[3, 4], dtype)?);
        rotary_emb::rope(&x, &angles, &angles)?;
        rotary_emb::rope_i(&x, &angles, &angles)?;
    }
    let (angles, rows) = (on(device, &[3, 4], F32)?, Tensor::new(&[0u32, 1, 2], device)?);
    for dtype in [BF16, F16, F32] {
        let (x, weights) = (on(device, &[3, 8], dtype)?, on(device, &[8], dtype)?);
        fused::add_rms_norm(&x, &x, None, &weights, 1e-5)?;
        fused_image::add3(&x, &x, &x)?;
        for cache in [BF16, F16, F32] {
            let (keys, values) = (on(device, &[3, 1, 8], cache)?, on(device, &[3, 1, 8], cache)?);
            let rotary = fused::Rotary { cos: &angles, sin: &angles, interleaved: false };
            let (q, k, v, positions, slots) = (&x, &x, &x, &rows, &rows);
            let (bias, norms, scales, keys, values) = (None, None, None, &keys, &values);
            fused::CacheHeads { q, k, v, bias, norms, rotary, positions, slots, keys, values, scales }
                .forward()?;
        }
        let queries = if dtype == BF16 { BF16 } else { F16 };
        let (keys, values) = (Tensor::zeros((3, 1, 8), U8, device)?, Tensor::zeros((3, 1, 8), U8, device)?);
        let scales = Tensor::zeros((3, 1, 2), BF16, device)?;
        let rotary = fused::Rotary { cos: &angles, sin: &angles, interleaved: false };
        let (q, k, v, positions, slots) = (&x, &x, &x, &rows, &rows);
        let (bias, norms, keys, values) = (None, None, &keys, &values);
        let scales = Some(CacheScales { scales: &scales, queries });
        fused::CacheHeads { q, k, v, bias, norms, rotary, positions, slots, keys, values, scales }
            .forward()?;
    }
    Ok(())
}

/// The maximum number of keys selects the rows and keys of a workgroup.
fn appended_rows(device: &Device) -> Result<()> {
    let (cos, sin) = (&on(device, &[1, 4], F32)?, &on(device, &[1, 4], F32)?);
    let rotary = fused::Rotary { cos, sin, interleaved: true };
    let (zero, one_row) = (Tensor::zeros(1, U32, device)?, Tensor::new(&[0u32, 1], device)?);
    let block_table = &zero.reshape((1, 1))?;
    let scores = ScoreParams { scale: 1.0, softcap: None, window: None, sinks: None };
    let pair = Tensor::zeros((1, 16, 1, 2), BF16, device)?;
    let of_floats = [BF16, F16, F32].map(|dtype| (dtype, dtype));
    let encoded = [BF16, F16].into_iter().flat_map(|dtype| [(dtype, U8), (dtype, F8E4M3)]);
    for (dtype, cache) in of_floats.into_iter().chain(encoded) {
        let [keys, values] = [(); 2].map(|()| Tensor::zeros((1, 16, 1, 8), cache, device));
        let (keys, values) = (keys?, values?);
        let (k, v) = (&on(device, &[1, 8], dtype)?, &on(device, &[1, 8], dtype)?);
        let scales = (cache != dtype).then_some(CacheScales { scales: &pair, queries: dtype });
        for (heads, max_keys) in [(1, 16), (8, 2048), (1, 4096), (8, 8192)] {
            let q = &on(device, &[1, heads * 8], dtype)?;
            let (positions, slots, keys, values) = (&zero, &zero, &keys, &values);
            let (bias, norms) = (None, None);
            let heads =
                fused::CacheHeads { q, k, v, bias, norms, rotary, positions, slots, keys, values, scales };
            let (cu_rows, cu_keys, page_size, constant_history) = (&one_row, &one_row, 16, false);
            let sequences =
                PagedSequences { cu_rows, cu_keys, block_table, page_size, max_keys, constant_history };
            append_and_attend(&heads, &sequences, &scores)?.expect("a kernel");
        }
    }
    let size = StaticCacheSize { layers: 1, sequences: 2, capacity: 16, key_heads: 1, width: 8 };
    StaticCache::new(size, F32, device)?.advance()
}

fn recurrences(device: &Device) -> Result<()> {
    let rows = Tensor::new(&[0u32, 3], device)?;
    let (slots, positions) = (Tensor::new(&[0u32], device)?, Tensor::new(&[0u32, 1, 2], device)?);
    let slots_of_rows = Tensor::new(&[u32::MAX, u32::MAX, 0], device)?;
    let sequences =
        Sequences { rows: &rows, slots: &slots, kept: &slots_of_rows, positions: &positions, max_rows: 3 };
    let (weight, of_heads) = (on(device, &[40, 4], F32)?, on(device, &[1], F32)?);
    for dtype in [BF16, F16, F32] {
        let (x, states) = (on(device, &[3, 40], dtype)?, on(device, &[1, 3, 40], dtype)?);
        let qkv = CausalConv { x: &x, weight: &weight, bias: None, states: &states, sequences }.forward()?;
        let (z, norm, states) =
            (on(device, &[3, 8], dtype)?, on(device, &[8], dtype)?, on(device, &[1, 1, 8, 16], F32)?);
        let (a, rate) = (&z.narrow(1, 0, 1)?, &of_heads);
        let (qkv, z, norm, states, eps) = (&qkv, &z, &norm, &states, 1e-6);
        GatedDelta { qkv, a, b: a, z, rate, dt_bias: rate, norm, eps, states, sequences }.forward()?;
        let (dt_bias, skip, step_limits) = (rate, rate, [0.0, f32::INFINITY]);
        SelectiveScan { qkv, a, z: Some(z), rate, dt_bias, skip, step_limits, states, sequences }
            .forward()?;
    }
    Ok(())
}

/// Rows that are sorted in one launch, and rows for the radix sort.
fn sorting(device: &Device) -> Result<()> {
    for dtype in ALL {
        for columns in [40, 4100] {
            let x = on(device, &[1, columns], dtype)?;
            x.arg_sort_last_dim(true)?;
            x.arg_sort_last_dim(false)?;
        }
    }
    Ok(())
}

fn sampling(device: &Device) -> Result<()> {
    let settings = Tensor::zeros(SAMPLE_SETTINGS_WORDS, U32, device)?;
    for dtype in [BF16, F16, F32] {
        let logits = on(device, &[1, 40], dtype)?;
        let ((logits, logits_layout), (settings, settings_layout)) =
            (logits.storage_and_layout(), settings.storage_and_layout());
        let (Storage::Rocm(logits), Storage::Rocm(settings)) = (&*logits, &*settings) else { continue };
        // SAFETY: settings of zeros refer to no lists and ask for no most likely tokens.
        unsafe {
            rocm::sample((logits, logits_layout), (settings, settings_layout), SAMPLE_RESULT_WORDS)?;
        }
    }
    Ok(())
}

/// Convolutions without MIOpen: few output channels use the direct kernels, with several outputs per thread if the stride is
/// 1; more channels use the unfolded input.
fn windows(device: &Device) -> Result<()> {
    candle::rocm::set_conv_library(Some(false));
    for dtype in ALL {
        let x = on(device, &[1, 2, 6, 6], dtype)?;
        x.conv_transpose2d(&on(device, &[2, 3, 2, 2], dtype)?, 0, 0, 1, 1)?;
        x.avg_pool2d(2)?;
        x.max_pool2d(2)?;
        x.upsample_bilinear2d(5, 7, true)?;
        if SIZES.contains(&dtype) {
            x.upsample_nearest2d(5, 7)?;
        }
        if WIDER_FLOATS.contains(&dtype) {
            x.conv2d(&on(device, &[1, 2, 3, 3], dtype)?, 0, 1, 1, 1)?;
            x.conv2d(&on(device, &[1, 2, 3, 3], dtype)?, 0, 2, 1, 1)?;
            on(device, &[1, 4, 6, 6], dtype)?.conv2d(&on(device, &[10, 2, 3, 3], dtype)?, 0, 1, 1, 2)?;
            let k = Var::from_tensor(&on(device, &[8, 2, 3, 3], dtype)?)?;
            x.conv2d(&k, 0, 1, 1, 1)?.sum_all()?.backward()?;
            // Enough channels for matrix products, and enough results for the larger tiles.
            for (rows, columns, c_out, tiles) in [(3, 3, 6, false), (3, 3, 6, true), (1, 1 << 14, 65, true)] {
                candle::rocm::set_conv_tiles(Some(tiles));
                let x = on(device, &[1, 6, rows, columns], dtype)?;
                x.conv2d(&on(device, &[c_out, 6, 1, 2], dtype)?, 0, 1, 1, 1)?;
                x.conv_transpose2d(&on(device, &[6, c_out, 1, 2], dtype)?, 0, 0, 1, 1)?;
            }
        }
    }
    Ok(())
}

fn products(device: &Device) -> Result<()> {
    for dtype in [F32, F16, BF16] {
        for rows in [1, 2, 5] {
            on(device, &[rows, 16], dtype)?.matmul(&on(device, &[3, 16], dtype)?.t()?)?;
            on(device, &[2, rows, 16], dtype)?.matmul(&on(device, &[2, 3, 16], dtype)?.t()?)?;
        }
    }
    own_products(device)
}

/// One, few and many queries, and many queries with keys for several workgroups; the width of heads selects the kernel.
/// Gradients are called like other crates call them.
fn attention(device: &Device) -> Result<()> {
    for (dtype, width) in
        [F32, F16, BF16].into_iter().flat_map(|dtype| [48, 64, 96, 128, 256, 512].map(|width| (dtype, width)))
    {
        let of = |rows, width| on(device, &[1, 1, rows, width], dtype);
        let sizes = [(1, 3), (8, 3), (20, 3), (20, 1100)];
        // The width does not matter to the kernel that combines the results of several workgroups.
        for (queries, keys) in sizes.into_iter().filter(|(_, keys)| *keys < 4 || width == 64) {
            ops::sdpa(&of(queries, 16)?, &of(keys, 16)?, &of(keys, width)?, None, false, 0.25, 1.0)?;
        }
        if dtype != F32 || width < 512 {
            gradients(&of(3, 16)?, &of(3, 16)?, &of(3, width)?)?;
        }
    }
    for (dtype, width) in [F16, BF16].into_iter().flat_map(|dtype| [64, 128, 256].map(|width| (dtype, width)))
    {
        for (encoded, queries) in
            [U8, F8E4M3].into_iter().flat_map(|encoded| [1, 8, 20, 256].map(|n| (encoded, n)))
        {
            encoded_attention(&on(device, &[1, 1, queries, width], dtype)?, encoded)?;
        }
    }
    Ok(())
}

/// Attends to three keys in a page of an encoded cache. Few queries have a kernel for each
/// encoding, and many have one that decodes the cache first.
fn encoded_attention(q: &Tensor, encoded: DType) -> Result<()> {
    let (device, (_, _, queries, width)) = (q.device(), q.dims4()?);
    let page = Tensor::zeros((1, 1, 16, width), encoded, device)?;
    let scales = Tensor::zeros((1, 16, 1, 2), BF16, device)?;
    let (table, starts) = (Tensor::zeros((1, 1), U32, device)?, Tensor::new(&[0, queries as u32], device)?);
    let key_starts = Tensor::new(&[0u32, 3], device)?;
    let held = [q, &page, &scales, &table, &starts, &key_starts].map(Tensor::storage_and_layout);
    let mut operands = Vec::new();
    for (storage, layout) in &held {
        let Storage::Rocm(storage) = &**storage else { candle::bail!("not on the device") };
        operands.push((storage, *layout));
    }
    let [q, page, scales, table, queries_start, keys_start] = operands[..] else { unreachable!() };
    let (queries, keys) = (queries_start, keys_start);
    let sequences = AttentionSequences { queries, keys, max_queries: q.1.dims()[2], max_keys: 3 };
    let (pages, scales, sequences) = (Some(table), Some(scales), Some(sequences));
    let attention = Attention { scale: 0.25, pages, scales, sequences, ..Attention::default() };
    attention.forward("encoded attention", q, page, page, q.1).map(drop)
}

fn gradients(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
    const OP: &str = "gradients";
    let held = [q, k, v].map(Tensor::storage_and_layout);
    let [(Storage::Rocm(q), q_layout), (Storage::Rocm(k), k_layout), (Storage::Rocm(v), v_layout)] =
        held.each_ref().map(|(storage, layout)| (&**storage, *layout))
    else {
        candle::bail!("not on the device")
    };
    let operands = [(q, q_layout), (k, k_layout), (v, v_layout)];
    let attention = Attention { scale: 0.25, statistics: true, ..Attention::default() };
    let made = attention.forward(OP, operands[0], operands[1], operands[2], v_layout)?;
    let statistics = made.statistics.expect("statistics were requested");
    // The result serves as its own gradient.
    let out = (&made.out, v_layout);
    attention.backward(OP, operands, out, &statistics, out, [q_layout, k_layout, v_layout]).map(drop)
}

/// Launches the kernels that replace rocBLAS, which the software GPU always has, and compares them with the CPU device.
fn own_products(device: &Device) -> Result<()> {
    let tile = PRODUCT_TILE as u32;
    let plain = Product::kernel(ProductKind::Product, Element::F64).expect("a plain product of f64");
    own_product(device, F64, tile, [tile, tile], |rocm, config, arguments| {
        // SAFETY: the operands were checked against their buffers for the sizes in the arguments.
        unsafe { rocm.launch(plain, config, &arguments) }
    })?;
    for (side, length) in [(TileSide::S64, 64), (TileSide::S128, 128)] {
        for dtype in [BF16, F16, F32, F8E4M3] {
            let element = rocm::element(dtype).expect("a dtype that computes");
            let kernel = TiledProduct::kernel(side, element).expect("tiles of each dtype");
            own_product(device, dtype, length, [BLOCK as u32, 1], |rocm, config, arguments| {
                let Product { a, b, c, m, n, k, batches, a_row, a_column, a_batch, .. } = arguments;
                let Product { b_row, b_column, b_batch, c_row, c_batch, .. } = arguments;
                let arguments = TiledProduct {
                    a,
                    b,
                    c,
                    m,
                    n,
                    k,
                    batches,
                    a_row,
                    a_column,
                    a_batch,
                    b_row,
                    b_column,
                    b_batch,
                    c_row,
                    c_batch,
                };
                // SAFETY: as above.
                unsafe { rocm.launch(kernel, config, &arguments) }
            })?;
        }
    }
    Ok(())
}

/// Checks one of these kernels on one part of a result.
fn own_product(
    device: &Device,
    dtype: DType,
    length: u32,
    [x, y]: [u32; 2],
    launch: impl Fn(&RocmDevice, LaunchConfig, Product) -> Result<()>,
) -> Result<()> {
    const OP: &str = "product";
    let (batches, m, n, k) = (2, 19, 35, 18);
    let (a, b) = (tensor(&[batches, m, k], dtype, 1.0), tensor(&[batches, k, n], dtype, 1.0));
    // In f64, rounded once.
    let expected = common::wide(&a).matmul(&common::wide(&b))?.to_dtype(dtype)?;
    let (a, b) = (a.to_device(device)?, b.to_device(device)?);
    let rocm = device.as_rocm_device()?;
    let shape = Shape::from((batches, m, n));
    // SAFETY: every element is written by the kernel.
    let result = unsafe { RocmStorage::alloc(rocm, dtype, shape.elem_count(), OP)? };
    {
        let ((a, a_layout), (b, b_layout)) = (a.storage_and_layout(), b.storage_and_layout());
        let (Storage::Rocm(a), Storage::Rocm(b)) = (&*a, &*b) else { candle::bail!("not on the device") };
        let arguments = Product {
            a: a.ptr(a_layout, OP)?,
            b: b.ptr(b_layout, OP)?,
            c: result.ptr(&Layout::contiguous(&shape), OP)?,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            batches: batches as u32,
            a_row: k,
            a_column: 1,
            a_batch: m * k,
            b_row: n,
            b_column: 1,
            b_batch: k * n,
            c_row: n,
            c_batch: m * n,
            width: 1,
        };
        let (rows, columns) = ((m as u32).div_ceil(length), (n as u32).div_ceil(length));
        // The kernel for f64 has rows in y.
        let (grid_x, grid_y) = if y > 1 { (columns, rows) } else { (columns * rows, 1) };
        let config = LaunchConfig { grid: (grid_x, grid_y, batches as u32), block: (x, y, 1), lds_bytes: 0 };
        launch(rocm, config, arguments)?;
    }
    let got = Tensor::from_storage(Storage::Rocm(result), shape, candle::op::BackpropOp::none(), false);
    assert_close(&got, &expected, tolerance(dtype), &format!("product {dtype:?}"));
    Ok(())
}

fn experts(device: &Device) -> Result<()> {
    let router = Router {
        used: 2,
        function: RouterFunction::Softmax,
        normalized: false,
        scale: 1.0,
        groups: None,
        correction: None,
    };
    let Some((experts, weights)) = router.route(&on(device, &[1, 2], F32)?)? else {
        candle::bail!("no kernel for the router")
    };
    let layer = |stack: ProductWeight, dtype, groups: Option<&ExpertGroups>| -> Result<()> {
        let (x, hidden) = (on(device, &[1, 256], dtype)?, on(device, &[2, 256], dtype)?);
        FusedExperts::new(&x, stack, &experts).grouped(groups).gated(GateActivation::Silu)?;
        FusedExperts::new(&hidden, stack, &experts).grouped(groups).sum(&weights, None)?;
        Ok(())
    };
    for dtype in [F32, F16, BF16] {
        layer((&on(device, &[2, 2, 256], dtype)?).into(), dtype, None)?;
    }
    for (dtype, _) in block_types() {
        let stack = QTensor::quantize(&on(device, &[2, 2, 256], F32)?, dtype)?;
        layer((&stack).into(), F32, None)?;
        if ExpertGroups::are_supported((&stack).into(), 1, 2)? {
            layer((&stack).into(), F32, Some(&ExpertGroups::new(&experts, 2)?))?;
        }
    }
    Ok(())
}

fn quantizing(device: &Device) -> Result<()> {
    let (x, weights) = (on(device, &[1, 256], F32)?, [1.0; 256]);
    for (dtype, format) in block_types() {
        let matrix = QTensor::quantize(&x, dtype)?;
        if Quantize::kernel(QuantizeKind::QuantizeWeighted, format).is_some() {
            QTensor::quantize_imatrix(&x, &weights, dtype)?;
        }
        matrix.dequantize(device)?;
        matrix.dequantize_f16(device)?;
        // One row, a few, and many.
        for rows in [1, 2, 5, 65] {
            on(device, &[rows, 256], F32)?.apply_op1_no_bwd(&matrix)?;
        }
        on(device, &[5, 256], F16)?.apply_op1_no_bwd(&matrix)?;
        let stack = QTensor::quantize(&on(device, &[2, 1, 256], F32)?, dtype)?;
        let experts = Tensor::new(&[[1u32, 0]], device)?;
        stack.indexed_moe_forward(&on(device, &[1, 1, 256], F32)?, &experts)?;
    }
    let (matrix, large) = (QTensor::quantize(&x, GgmlDType::Q8_0)?, QTensor::quantize(&x, GgmlDType::Q4K)?);
    let ids = Tensor::new(&[0u32, 1], device)?;
    for dtype in [F16, BF16] {
        on(device, &[2, 256], dtype)?.apply_op1_no_bwd(&matrix)?;
        on(device, &[2, 256], dtype)?.apply_op1_no_bwd(&large)?;
        let (rows, stack) = (on(device, &[2, 16], dtype)?, on(device, &[2, 3, 16], dtype)?);
        candle_nn::moe::moe_gemm(&rows, &stack, &None, &ids, &ids, 1, false)?;
    }
    Ok(())
}
