//! Attention that appends rows to a paged cache, compared with separate operations in f32 on the CPU.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, IndexOp, Result, Tensor, D};
use candle_nn::encoded_cache::{CacheEncoding, CacheScales};
use candle_nn::fused::{CacheHeads, HeadNorms, Rotary};
use candle_nn::fused_attention::{append_and_attend, PagedSequences, ScoreParams};
use candle_nn::ops::softmax_last_dim;
use common::{assert_close, rocm_alone, tensor, tolerance};

const PAGE: usize = 16;
const POSITIONS: usize = 1400;

/// Sizes and options of a step. `without_slot` is a sequence whose keys are all in the cache. `constant_history` has an effect
/// only where launches overlap.
#[derive(Clone, Debug)]
struct Case {
    keys: Vec<usize>,
    heads: usize,
    key_heads: usize,
    width: usize,
    pairs: usize,
    interleaved: bool,
    biased: bool,
    normed: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    has_sinks: bool,
    without_slot: Option<usize>,
    constant_history: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            keys: vec![1, 40, 17],
            heads: 4,
            key_heads: 2,
            width: 64,
            pairs: 32,
            interleaved: false,
            biased: false,
            normed: false,
            window: None,
            softcap: None,
            has_sinks: false,
            without_slot: None,
            constant_history: false,
        }
    }
}

/// Operands of a step on a device.
struct Operands {
    joined: Tensor,
    bias: Tensor,
    norms: [Tensor; 2],
    angles: [Tensor; 2],
    positions: Tensor,
    slots: Tensor,
    cache: [Tensor; 2],
    /// Scales of an encoded cache, and the dtype of the queries.
    scales: Option<(Tensor, DType)>,
    sinks: Tensor,
    ends: [Tensor; 2],
    table: Tensor,
}

impl Operands {
    fn new(case: &Case, dtype: DType) -> Self {
        let Case { keys, heads, key_heads, width, pairs, .. } = case;
        let (rows, device) = (keys.len(), &Device::Cpu);
        let most = keys.iter().map(|keys| keys.div_ceil(PAGE)).max().unwrap();
        let pages = rows * most + 1;
        // The pages of all sequences are interleaved, from the last one on.
        let page = |sequence: usize, page: usize| (pages - 1 - page * rows - sequence) as u32;
        let table = (0..rows).flat_map(|sequence| (0..most).map(move |at| page(sequence, at)));
        let table: Vec<u32> = table.collect();
        let slot = |sequence: usize, keys: usize| {
            let last = keys - 1;
            page(sequence, last / PAGE) * PAGE as u32 + (last % PAGE) as u32
        };
        let slots: Vec<u32> = keys
            .iter()
            .enumerate()
            .map(|(at, keys)| if case.without_slot == Some(at) { u32::MAX } else { slot(at, *keys) })
            .collect();
        let mut key_ends = vec![0u32];
        key_ends.extend(keys.iter().scan(0, |end, keys| {
            *end += *keys as u32;
            Some(*end)
        }));
        let columns = (heads + 2 * key_heads) * width;
        let positions: Vec<u32> = keys.iter().map(|keys| *keys as u32 - 1).collect();
        Self {
            joined: tensor(&[rows, columns], dtype, 2.0),
            bias: tensor(&[columns], dtype, 0.6),
            norms: [tensor(&[*width], dtype, 1.2), tensor(&[*width], dtype, 0.8)],
            angles: [
                tensor(&[POSITIONS, *pairs], DType::F32, 1.0),
                tensor(&[POSITIONS, *pairs], DType::F32, 0.9),
            ],
            positions: Tensor::new(positions, device).unwrap(),
            slots: Tensor::new(slots, device).unwrap(),
            cache: [1.0, 1.5].map(|limit| tensor(&[pages, PAGE, *key_heads, *width], dtype, limit)),
            scales: None,
            sinks: tensor(&[*heads], DType::F32, 2.0),
            ends: [
                Tensor::arange(0, rows as u32 + 1, device).unwrap(),
                Tensor::new(key_ends, device).unwrap(),
            ],
            table: Tensor::from_vec(table, (rows, most), device).unwrap(),
        }
    }

    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Self {
        let f = |tensor: &Tensor| f(tensor).unwrap();
        Self {
            joined: f(&self.joined),
            bias: f(&self.bias),
            norms: self.norms.each_ref().map(f),
            angles: self.angles.each_ref().map(f),
            positions: f(&self.positions),
            slots: f(&self.slots),
            cache: self.cache.each_ref().map(f),
            scales: self.scales.as_ref().map(|(scales, queries)| (f(scales), *queries)),
            sinks: f(&self.sinks),
            ends: self.ends.each_ref().map(f),
            table: f(&self.table),
        }
    }

    /// Encodes the cache.
    fn encoded(mut self, encoding: CacheEncoding, queries: DType) -> Self {
        let [keys, values] = self.cache.each_ref().map(|cache| encoding.encode(cache).unwrap());
        let scales = Tensor::stack(&[keys.1, values.1], D::Minus1).unwrap();
        self.scales = Some((scales, queries));
        self.cache = [keys.0, values.0];
        self
    }

    /// Decodes the cache to f32.
    fn decoded(&self) -> [Tensor; 2] {
        let (scales, _) = self.scales.as_ref().unwrap();
        [0, 1].map(|which| {
            CacheEncoding::decode(&self.cache[which], &scales.i((.., .., .., which)).unwrap()).unwrap()
        })
    }

    /// Calls `f` with the heads.
    fn with_heads<T>(&self, case: &Case, f: impl FnOnce(&CacheHeads) -> Result<T>) -> Result<T> {
        let Case { heads, key_heads, width, interleaved, biased, normed, .. } = *case;
        let part = |first: usize, heads: usize| self.joined.narrow(1, first * width, heads * width);
        let norms = HeadNorms { query: &self.norms[0], key: &self.norms[1], eps: 1e-5 };
        let (q, k, v) = (part(0, heads)?, part(heads, key_heads)?, part(heads + key_heads, key_heads)?);
        f(&CacheHeads {
            q: &q,
            k: &k,
            v: &v,
            bias: biased.then_some(&self.bias),
            norms: normed.then_some(norms),
            rotary: Rotary { cos: &self.angles[0], sin: &self.angles[1], interleaved },
            positions: &self.positions,
            slots: &self.slots,
            keys: &self.cache[0],
            values: &self.cache[1],
            scales: self.scales.as_ref().map(|(scales, queries)| CacheScales { scales, queries: *queries }),
        })
    }

    /// Computes the step in one launch.
    fn fused(&self, case: &Case) -> Result<Option<Tensor>> {
        let sequences = PagedSequences {
            cu_rows: &self.ends[0],
            cu_keys: &self.ends[1],
            block_table: &self.table,
            page_size: PAGE,
            max_keys: self.table.dim(1)? * PAGE,
            constant_history: case.constant_history,
        };
        let scores = ScoreParams {
            scale: 0.2,
            softcap: case.softcap,
            window: case.window,
            sinks: case.has_sinks.then_some(&self.sinks),
        };
        self.with_heads(case, |heads| append_and_attend(heads, &sequences, &scores))
    }

    /// Computes the step with separate operations, which also write the cache.
    fn separate(&self, case: &Case) -> Result<Tensor> {
        self.attend(case, &self.with_heads(case, |heads| heads.forward_separately())?)
    }

    /// Computes attention of queries over a cache of floats.
    fn attend(&self, case: &Case, q: &Tensor) -> Result<Tensor> {
        let Case { heads, key_heads, width, .. } = *case;
        let mut rows = Vec::new();
        for (row, &keys) in case.keys.iter().enumerate() {
            let first = case.window.map_or(0, |window| (keys - 1).saturating_sub(window));
            let gather = |cache: &Tensor| {
                let all = cache.index_select(&self.table.i(row)?, 0)?.flatten(0, 1)?;
                all.narrow(0, first, keys - first)?.transpose(0, 1)?.contiguous()
            };
            let (k, v) = (gather(&self.cache[0])?, gather(&self.cache[1])?);
            let q = q.i(row)?.reshape((key_heads, heads / key_heads, width))?;
            let mut scores = (q.matmul(&k.transpose(1, 2)?.contiguous()?)? * 0.2f32 as f64)?;
            if let Some(cap) = case.softcap {
                scores = ((scores / cap as f64)?.tanh()? * cap as f64)?;
            }
            if case.has_sinks {
                let sinks = self.sinks.reshape((key_heads, heads / key_heads, 1))?;
                scores = Tensor::cat(&[&scores, &sinks], D::Minus1)?;
            }
            let weights = softmax_last_dim(&scores)?.narrow(D::Minus1, 0, keys - first)?.contiguous()?;
            rows.push(weights.matmul(&v)?.reshape((heads, width))?);
        }
        Tensor::stack(&rows, 0)
    }
}

#[track_caller]
fn check(case: &Case, dtype: DType) {
    check_rows(case, dtype, dtype);
}

/// Compares projections of `rows` and a cache of `dtype`.
#[track_caller]
fn check_rows(case: &Case, rows: DType, dtype: DType) {
    let what = format!("{case:?} {rows:?} {dtype:?}");
    let device = rocm_alone();
    let mut host = Operands::new(case, rows);
    host.cache = host.cache.map(|cache| cache.to_dtype(dtype).unwrap());
    let on = host.map(|tensor| tensor.to_device(&device));
    let before = device.as_rocm_device().unwrap().kernels_launched();
    let got = on.fused(case).unwrap().expect("a kernel");
    let made = device.as_rocm_device().unwrap().kernels_launched() - before;
    assert_eq!(made, 1, "{what}");
    let exact = host.map(|tensor| match tensor.dtype() {
        DType::U32 => Ok(tensor.clone()),
        _ => tensor.to_dtype(DType::F32),
    });
    let expected = exact.separate(case).unwrap();
    let tolerance = tolerance(dtype).max(1e-4);
    assert_close(&got, &expected, tolerance, &what);
    for (got, expected) in on.cache.iter().zip(&exact.cache) {
        assert_close(got, expected, tolerance, &what);
    }
}

/// Compares an encoded cache with that of the launch that only writes it, and attention with that over the decoded cache in f32
/// on the CPU.
#[track_caller]
fn check_encoded(case: &Case, rows: DType, queries: DType, encoding: CacheEncoding) {
    let what = format!("{case:?} {rows:?} {queries:?} {encoding:?}");
    let device = rocm_alone();
    let mut host = Operands::new(case, rows).encoded(encoding, queries);
    if case.normed {
        // The sums of such squares are exact, so that their order does not matter.
        let sixteenths = |x: &Tensor| (x * 16.0)?.round()? * (1.0 / 16.0);
        host.joined = sixteenths(&host.joined).unwrap();
        host.bias = sixteenths(&host.bias).unwrap();
    }
    let [on, separate] = [(); 2].map(|()| host.map(|tensor| tensor.to_device(&device)));
    let before = device.as_rocm_device().unwrap().kernels_launched();
    let got = on.fused(case).unwrap().expect("a kernel");
    let made = device.as_rocm_device().unwrap().kernels_launched() - before;
    assert_eq!((made, got.dtype()), (1, queries), "{what}");
    let q = separate.with_heads(case, |heads| heads.forward()).unwrap();
    let [on, separate] = [on, separate].map(|of| of.map(|tensor| tensor.to_device(&Device::Cpu)));
    // No kernel only writes rows of f32 with queries of bf16.
    if (rows, queries) != (DType::F32, DType::BF16) {
        for (got, expected) in on.cache.iter().zip(&separate.cache) {
            assert_close(got, expected, 0.0, &what);
        }
        let [got, expected] = [&on, &separate].map(|of| &of.scales.as_ref().unwrap().0);
        assert_close(got, expected, 0.0, &what);
    }
    let exact = Operands { cache: on.decoded(), ..host };
    let q = q.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let expected = exact.attend(case, &q).unwrap();
    assert_close(&got, &expected, tolerance(queries), &what);
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Returns cases of each kind of workgroups, with one tile of keys and several.
fn workgroup_cases() -> [Case; 9] {
    [
        Case::default(),
        Case { interleaved: true, biased: true, ..Case::default() },
        Case { normed: true, biased: true, width: 128, pairs: 64, ..Case::default() },
        // Workgroups of 8 rows, because more of 4 rows would exceed the multiprocessors; a key that begins a page.
        Case { keys: vec![1300], heads: 8, key_heads: 1, ..Case::default() },
        Case { keys: vec![1300, 257], heads: 8, key_heads: 1, ..Case::default() },
        Case { keys: vec![690, 257], heads: 4, key_heads: 1, width: 128, pairs: 64, ..Case::default() },
        // As many workgroups as run at once, each of which iterates over several tiles of keys.
        Case { keys: vec![300; 48], width: 8, pairs: 4, interleaved: true, ..Case::default() },
        Case { keys: vec![1024, 513], heads: 2, key_heads: 1, ..Case::default() },
        Case { without_slot: Some(1), constant_history: true, has_sinks: true, ..Case::default() },
    ]
}

#[test]
fn rows_are_appended_and_attended_in_one_launch() {
    for dtype in DTYPES {
        for case in workgroup_cases() {
            check(&case, dtype);
        }
    }
}

/// The part that combines the results waits for the others, in whatever order the workgroups run.
#[test]
fn parts_of_keys_are_combined_in_any_order() {
    if rocm_alone().as_rocm_device().unwrap().driver_name() != "emulator" {
        return println!("not applicable: only the software GPU runs workgroups in a chosen order");
    }
    for seed in 1..=3 {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rows_are_appended_and_attended_in_one_launch"])
            .env("CANDLE_ROCM_EMULATOR", format!("seed={seed}"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "seed {seed}: {text}");
    }
}

/// NaN with all bits set looks like nothing to the part that waits for it. The next launch finds nothing left of it.
#[test]
fn parts_hand_over_nan() {
    let device = rocm_alone();
    let case = Case { keys: vec![900], heads: 8, key_heads: 1, ..Case::default() };
    let host = Operands::new(&case, DType::F32);
    let on_device = || host.map(|tensor| tensor.to_device(&device));
    let mut broken = on_device();
    let nan = Tensor::full(f32::from_bits(u32::MAX), broken.cache[1].shape(), &device).unwrap();
    broken.cache[1] = nan;
    let attended = broken.fused(&case).unwrap().expect("a kernel").flatten_all().unwrap();
    assert!(attended.to_vec1::<f32>().unwrap().iter().all(|value| value.is_nan()));
    let attended = on_device().fused(&case).unwrap().expect("a kernel");
    assert_close(&attended, &host.separate(&case).unwrap(), 1e-4, "after NaN");
}

#[test]
fn widths_groups_and_scores_of_all_kinds_are_appended() {
    for case in [
        // Four tiles of rows for each key head, of which only the first writes.
        Case { heads: 16, key_heads: 1, keys: vec![33], ..Case::default() },
        Case { heads: 12, key_heads: 1, keys: vec![1100, 2], ..Case::default() },
        Case { heads: 3, key_heads: 1, keys: vec![300, 2], without_slot: Some(0), ..Case::default() },
        // Partly rotated heads, and widths that are no power of two.
        Case { width: 96, pairs: 24, heads: 3, key_heads: 3, normed: true, ..Case::default() },
        Case { width: 80, pairs: 40, heads: 2, key_heads: 1, ..Case::default() },
        Case { width: 8, pairs: 4, interleaved: true, heads: 5, key_heads: 5, ..Case::default() },
        Case { width: 256, pairs: 128, normed: true, biased: true, keys: vec![1, 2, 3], ..Case::default() },
        Case { width: 256, pairs: 32, heads: 9, key_heads: 1, keys: vec![500], ..Case::default() },
        // A window of the row's own key, and one that begins within a page.
        Case { window: Some(0), keys: vec![1, 50], ..Case::default() },
        Case { window: Some(20), softcap: Some(3.0), keys: vec![150, 9], ..Case::default() },
        Case {
            window: Some(300),
            has_sinks: true,
            keys: vec![650],
            constant_history: true,
            ..Case::default()
        },
        Case { without_slot: Some(0), keys: vec![1200], ..Case::default() },
    ] {
        check(&case, DType::F16);
        check(&case, DType::F32);
        check_rows(&case, DType::F32, DType::F16);
        check_rows(&case, DType::F32, DType::BF16);
    }
}

/// A key that is alone, or in a window of its own, shows that attention takes its decoded value.
#[test]
fn encoded_rows_are_appended_and_attended_in_one_launch() {
    const F16: DType = DType::F16;
    for encoding in [CacheEncoding::Int8, CacheEncoding::Fp8] {
        for case in workgroup_cases() {
            check_encoded(&case, F16, F16, encoding);
            check_encoded(&case, DType::BF16, DType::BF16, encoding);
        }
        for case in [
            Case { heads: 16, key_heads: 1, keys: vec![33], ..Case::default() },
            // More query heads than lane groups, with a width that is no power of two.
            Case { width: 96, pairs: 24, heads: 9, key_heads: 3, normed: true, ..Case::default() },
            Case {
                width: 256,
                pairs: 128,
                normed: true,
                biased: true,
                keys: vec![1, 2, 3],
                ..Case::default()
            },
            Case { width: 256, pairs: 32, heads: 9, key_heads: 1, keys: vec![500], ..Case::default() },
            Case { window: Some(0), keys: vec![1, 50], ..Case::default() },
            Case { window: Some(20), softcap: Some(3.0), keys: vec![150, 9], ..Case::default() },
        ] {
            check_encoded(&case, F16, F16, encoding);
            check_encoded(&case, DType::F32, F16, encoding);
            check_encoded(&case, DType::F32, DType::BF16, encoding);
        }
        let host = Operands::new(&Case::default(), DType::F32).encoded(encoding, DType::F32);
        let on = host.map(|tensor| tensor.to_device(&rocm_alone()));
        assert!(on.fused(&Case::default()).unwrap().is_none(), "{encoding:?}: no kernel has queries of f32");
    }
}

#[test]
fn operands_without_a_kernel_are_left_to_separate_operations() {
    let device = rocm_alone();
    for (case, dtype, cache) in [
        (Case { width: 20, pairs: 4, ..Case::default() }, DType::F16, DType::F16),
        (Case { pairs: 12, ..Case::default() }, DType::F16, DType::F16),
        (Case { heads: 17, key_heads: 1, ..Case::default() }, DType::F32, DType::F32),
        (Case { width: 264, pairs: 8, ..Case::default() }, DType::F16, DType::F16),
        (Case::default(), DType::F16, DType::F32),
        (Case::default(), DType::BF16, DType::F16),
    ] {
        let host = Operands::new(&case, dtype);
        let mut on = host.map(|tensor| tensor.to_device(&device));
        on.cache = on.cache.map(|tensor| tensor.to_dtype(cache).unwrap());
        let before = on.cache.each_ref().map(|cache| cache.to_device(&Device::Cpu).unwrap());
        assert!(on.fused(&case).unwrap().is_none(), "{case:?}");
        for (cache, before) in on.cache.iter().zip(&before) {
            assert_close(cache, before, 0.0, "nothing is written");
        }
    }
    // The CPU has no kernel.
    assert!(Operands::new(&Case::default(), DType::F32).fused(&Case::default()).unwrap().is_none());
}

#[test]
fn numbers_out_of_range_are_reported() {
    let device = rocm_alone();
    let case = Case::default();
    let numbers = |values: [u32; 3]| Tensor::new(&values, &device).unwrap();
    for (broken, text) in [("slots", "cache"), ("positions", "position")] {
        let mut on = Operands::new(&case, DType::F16).map(|tensor| tensor.to_device(&device));
        match broken {
            "slots" => on.slots = numbers([100_000, 1, 2]),
            _ => on.positions = numbers([0, 1, POSITIONS as u32]),
        }
        on.fused(&case).unwrap();
        let error = device.synchronize().unwrap_err().to_string();
        assert!(error.contains(text), "{broken}: {error}");
    }
    let mut on = Operands::new(&case, DType::F16).map(|tensor| tensor.to_device(&device));
    on.ends[1] = on.ends[0].clone();
    on.table = on.table.narrow(0, 0, 2).unwrap();
    let error = on.fused(&case).unwrap_err().to_string();
    assert!(error.contains("page tables"), "{error}");
}
