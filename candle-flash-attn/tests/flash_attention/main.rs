//! Compares every function with the formula in f64, on this machine's GPU or the software GPU.
#![cfg(feature = "rocm-emulator")]
#[path = "../../../candle-core/tests/rocm_backend/attention_formula.rs"]
mod attention_formula;
mod case;
mod cpu_flash;
mod draw;
mod encoded;
mod formula;
mod functions;
mod gradients;
mod refusals;
mod training;

use std::collections::BTreeSet;

use candle::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use candle::{DType, Device, Result};
use case::{Case, Errors, Form, View};

const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Returns the device under test: that of the driver set in the environment, this machine's GPU, or the software GPU.
fn device() -> Device {
    if std::env::var_os(DRIVER_VARIABLE).is_none() && rocm_loader::driver().is_err() {
        candle::rocm::select_driver("emulator:gfx1100").unwrap();
    }
    Device::new_rocm(0).unwrap()
}

/// Runs all cases and prints the largest errors. Returns the names of the functions called.
#[track_caller]
fn run(cases: impl IntoIterator<Item = Case>) -> Result<BTreeSet<&'static str>> {
    let device = device();
    let (mut called, mut single, mut half, mut ratios) = (BTreeSet::new(), 0f64, 0f64, Vec::new());
    for case in cases {
        let Errors { function, largest, ours, plain } = case.run(&device)?;
        called.insert(function);
        if largest == 0.0 {
            continue;
        }
        if case.dtype == DType::F32 {
            single = single.max(ours.most / largest);
        } else {
            half = half.max(ours.most / plain.most);
            ratios.push((ours.mean_square / plain.mean_square).sqrt());
        }
    }
    ratios.retain(|ratio| ratio.is_finite());
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    println!(
        "f32: off by {single:.1e} of the largest; f16 and bf16: by {half:.2} times the plain formula's error at most, \
         {mean:.2} times in the mean of {} cases",
        ratios.len()
    );
    // Rounding errors are correlated within a small case, but not over all cases.
    assert!(mean <= 1.5, "{mean} times the plain formula's error");
    Ok(called)
}

const LENGTHS: [usize; 19] =
    [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513, 600];
const CAUSAL: (Option<usize>, Option<usize>) = (None, Some(0));

#[test]
fn every_length_at_the_edges_of_tiles() -> Result<()> {
    let mut cases = Vec::new();
    for (i, &length) in LENGTHS.iter().enumerate() {
        let form = [Form::Dense, Form::Sequences, Form::Pages(16)][i % 3];
        // Few and many queries, also with few keys.
        for (queries, keys) in [(1, length), (length.min(129), length.min(129)), (17, length), (length, 16)] {
            let window = if queries <= keys { CAUSAL } else { (None, None) };
            let (dtype, heads) = (DTYPES[cases.len() % 3], (1, 1));
            let sequences = vec![(queries, keys)];
            cases.push(Case { form, sequences, dtype, heads, window, function: i, ..Case::default() });
        }
    }
    run(cases).map(|_| ())
}

#[test]
fn every_width() -> Result<()> {
    let mut cases = Vec::new();
    for (i, width) in [8, 32, 40, 64, 72, 96, 128, 160, 192, 256, 512].into_iter().enumerate() {
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            let sequences = vec![[(5, 40), (37, 43), (20, 33)][(i + j) % 3]];
            let other = [64, 24, 128][(i + j) % 3];
            let case =
                Case { dtype, sequences, heads: (1, 1), window: CAUSAL, function: i + j, ..Case::default() };
            cases.push(Case { widths: (width, width), ..case.clone() });
            cases.push(Case { widths: if i % 2 == 0 { (width, other) } else { (other, width) }, ..case });
        }
    }
    run(cases).map(|_| ())
}

const FORMS: [Form; 3] = [Form::Dense, Form::Sequences, Form::Pages(32)];
/// Use of slopes, and the softcap.
const SCORES: [(bool, Option<f32>); 5] =
    [(false, None), (true, None), (false, Some(4.0)), (true, Some(4.0)), (false, Some(0.0))];
const WINDOWS: [(Option<usize>, Option<usize>); 8] = [
    (None, None),
    CAUSAL,
    (Some(9), Some(0)),
    (Some(0), Some(0)),
    (Some(5), Some(7)),
    (Some(11), None),
    (None, Some(4)),
    (Some(999), Some(999)),
];

/// Every combination of options, with every function that supports it.
#[test]
fn every_function() -> Result<()> {
    let mut cases = Vec::new();
    for form in FORMS {
        for ((alibi, softcap), window) in SCORES.into_iter().flat_map(|s| WINDOWS.map(|window| (s, window))) {
            let sequences = if form == Form::Dense { vec![(19, 35); 2] } else { vec![(19, 35), (3, 20)] };
            let case = Case { form, alibi, softcap, window, sequences, heads: (2, 1), ..Case::default() };
            let functions = case.functions().len();
            cases.extend((0..functions).map(|function| Case { function, ..case.clone() }));
        }
    }
    let sinks = |case: &Case| Case { sinks: true, function: 0, ..case.clone() };
    let with_sinks: Vec<_> = cases.iter().map(sinks).filter(|case| !case.functions().is_empty()).collect();
    cases.extend(with_sinks);
    let called = run(cases)?;
    let missed: Vec<_> =
        functions::FUNCTIONS.iter().filter(|f| !called.contains(f.name)).map(|f| f.name).collect();
    assert!(missed.is_empty(), "not called: {missed:?}");
    Ok(())
}

/// One and many parts of the keys, few and many rows, and queries without keys.
#[test]
fn sinks_weigh_as_a_further_key() -> Result<()> {
    let mut cases = Vec::new();
    for (i, length) in [(1, 1), (1, 70), (1, 600), (4, 300), (40, 40), (129, 257), (9, 4), (150, 1500)]
        .into_iter()
        .enumerate()
    {
        for (j, heads) in [(3, 1), (8, 1), (4, 2)].into_iter().enumerate() {
            let form = [Form::Sequences, Form::Pages(16)][(i + j) % 2];
            let window = [CAUSAL, (Some(127), Some(0))][i % 2];
            let (sequences, dtype) = (vec![length, (2, 5)], DTYPES[(i + j) % 3]);
            cases.push(Case { heads, form, sequences, dtype, window, sinks: true, ..Case::default() });
        }
    }
    run(cases).map(|_| ())
}

#[test]
fn groups_of_heads() -> Result<()> {
    let heads = [(1, 1), (4, 4), (4, 2), (8, 2), (8, 1), (16, 2), (6, 2), (3, 1)];
    let lengths = [(1, 70), (2, 33), (9, 40), (40, 40)];
    let cases = heads.into_iter().enumerate().flat_map(|(i, heads)| {
        lengths.into_iter().enumerate().map(move |(j, length)| {
            let form = [Form::Dense, Form::Sequences, Form::Pages(16)][(i + j) % 3];
            let (sequences, dtype) = (vec![length], DTYPES[(i + j) % 3]);
            Case {
                heads,
                form,
                sequences,
                dtype,
                window: CAUSAL,
                widths: (40, 40),
                function: j,
                ..Case::default()
            }
        })
    });
    run(cases).map(|_| ())
}

#[test]
fn pages_in_any_order() -> Result<()> {
    let mut cases = Vec::new();
    for (i, page) in [16, 32, 48, 256].into_iter().enumerate() {
        for (j, sequences) in
            [vec![(1, 300)], vec![(33, 97), (1, 16), (2, 257)], vec![(1, 1), (0, 40), (7, 0), (3, 49)]]
                .into_iter()
                .enumerate()
        {
            let (dtype, seed) = (DTYPES[(i + j) % 3], (10 * i + j) as u64);
            let ranges = sequences
                .iter()
                .map(|&(_, keys)| vec![(3, keys as i32 / 2), (0, 0), (keys as i32 - 9, keys as i32)]);
            let ranges = if (i + j) % 2 == 0 { ranges.collect() } else { Vec::new() };
            let case = Case {
                form: Form::Pages(page),
                sequences,
                dtype,
                seed,
                heads: (4, 2),
                ranges,
                ..Case::default()
            };
            cases.push(Case { window: (Some(20), Some(0)), ..case.clone() });
            cases.push(Case { window: CAUSAL, view: View::Heads, ..case });
        }
    }
    run(cases).map(|_| ())
}

#[test]
fn empty_sequences_and_queries_without_keys() -> Result<()> {
    let sequences = [
        vec![(0, 5), (3, 3), (0, 0)],
        vec![(4, 0), (1, 2)],
        // With a causal mask, queries before the first key see no keys.
        vec![(40, 7)],
        vec![(150, 20), (2, 1)],
    ];
    let forms = [Form::Sequences, Form::Pages(16)];
    let mut cases: Vec<Case> = Vec::new();
    for (i, sequences) in sequences.into_iter().enumerate() {
        for (j, form) in forms.into_iter().enumerate() {
            let (sequences, dtype) = (sequences.clone(), DTYPES[(i + j) % 3]);
            // The last function for sequences returns the statistics.
            cases.push(Case { form, sequences, dtype, window: CAUSAL, function: 3, ..Case::default() });
        }
    }
    for (i, sequences) in [vec![(5, 0)], vec![(0, 5)], vec![(30, 4)], vec![(6, 6); 0]].into_iter().enumerate()
    {
        cases.push(Case { sequences, window: CAUSAL, function: 3 - i % 2, ..Case::default() });
    }
    run(cases).map(|_| ())
}

#[test]
fn operands_of_any_strides() -> Result<()> {
    let mut cases = Vec::new();
    for view in [View::Heads, View::Offset, View::Fused] {
        for (i, dtype) in DTYPES.into_iter().enumerate() {
            for form in [Form::Dense, Form::Sequences] {
                let sequences = if form == Form::Dense { vec![(21, 21); 2] } else { vec![(21, 21), (6, 6)] };
                cases.push(Case {
                    view,
                    dtype,
                    form,
                    sequences,
                    heads: (4, 2),
                    widths: (72, 72),
                    function: i,
                    ..Case::default()
                });
            }
        }
    }
    run(cases).map(|_| ())
}

/// Few queries with many keys use split-KV: several workgroups whose partial results are combined.
#[test]
fn few_queries_of_many_keys() -> Result<()> {
    let mut cases = Vec::new();
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        for (j, form) in [Form::Dense, Form::Sequences, Form::Pages(48)].into_iter().enumerate() {
            let (function, alibi) = (i + j, j < 2 && i == 1);
            let sequences =
                if form == Form::Dense { vec![(2, 2000)] } else { vec![(2, 2000), (1, 1100), (2, 0)] };
            let window = [(None, None), CAUSAL, (Some(700), Some(0))][i];
            cases.push(Case {
                dtype,
                form,
                sequences,
                alibi,
                window,
                function,
                heads: (8, 2),
                ..Case::default()
            });
        }
    }
    run(cases).map(|_| ())
}

#[test]
fn drawn_cases() -> Result<()> {
    run(draw::cases()).map(|_| ())
}
