//! Compares kernels (indexing, random, cast) on the software GPU with formulas on the host.
mod software_gpu;

use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{IDS_I64, IDS_U32, dim_word};
use hip_kernels::{Module as KernelModule, code_object};
use software_gpu::{ARCH, Buffer, Module, argument};

fn load(module: KernelModule) -> Module {
    Module::load(&code_object(module, ARCH).unwrap().bytes)
}

/// `CandleLayout`: dims, then strides.
fn layout(dims: &[usize], strides: &[usize]) -> [usize; 32] {
    let mut layout = [0; 32];
    layout.iter_mut().zip(dims).for_each(|(word, &size)| *word = dim_word(size));
    layout[dims.len()..2 * dims.len()].copy_from_slice(strides);
    layout
}

/// `CandleFault` as 64-bit words: op (and the turn in the upper half), index, bound.
const FAULT_WORDS: usize = 3;

/// Loads the indexing module with a fault record.
fn indexing() -> (Module, Buffer<u64>) {
    let module = load(KernelModule::Indexing);
    let record = Buffer::<u64>::zeroed(FAULT_WORDS);
    module.set_pointer("candle_fault", &record);
    (module, record)
}

#[test]
fn index_select_reads_rows_and_reports_the_first_wrong_index() {
    let (module, record) = indexing();
    // A 4x3 matrix.
    let source: Vec<u32> = (0..12).map(|i| 100 + i).collect();
    let source_buffer = Buffer::new(&source);
    let run = |ids: &[u64]| {
        let numel = ids.len() * 3;
        let (ids_buffer, out) = (Buffer::new(ids), Buffer::<u32>::zeroed(numel));
        module.launch_linear(
            "take_b4",
            numel,
            &mut [
                argument(&numel),
                ids_buffer.argument(),
                source_buffer.argument(),
                out.argument(),
                argument(&1usize),
                argument(&4usize),
                argument(&3usize),
                argument(&dim_word(3)),
                argument(&dim_word(ids.len())),
                argument(&IDS_I64),
                argument(&false),
            ],
        );
        out.read()
    };
    let row = |id: usize| (0..3).map(move |column| 100 + (id * 3 + column) as u32);
    // The largest i64 means "no row".
    assert_eq!(run(&[3, i64::MAX as u64, 0]), row(3).chain([0, 0, 0]).chain(row(0)).collect::<Vec<_>>());
    assert_eq!(record.read(), [0, 0, 0]);
    assert_eq!(run(&[1, 4, 2]), row(1).chain([0, 0, 0]).chain(row(2)).collect::<Vec<_>>());
    assert_eq!(record.read(), [1, 4, 4], "op 1, index 4, bound 4");
    // The first fault stays until the host clears it; negative indices are faults too.
    assert_eq!(run(&[-1i64 as u64, 0]), [0, 0, 0].into_iter().chain(row(0)).collect::<Vec<_>>());
    assert_eq!(record.read(), [1, 4, 4]);
    // If the host clears the record without advancing the turn, no fault is written; after advancing it, the next one is.
    record.write(&[0, 0, 0]);
    run(&[5]);
    assert_eq!(record.read(), [0, 0, 0]);
    record.write(&[1 << 32, 0, 0]);
    run(&[6]);
    assert_eq!(record.read(), [1 << 32 | 1, 6, 4]);
}

/// Callers get an error for such an index; this checks that nothing else is read or written.
#[test]
fn gather_and_scatter_skip_what_is_out_of_range() {
    let (module, record) = indexing();
    let one = dim_word(1);
    let source: Vec<u32> = (0..6).map(|i| (i as f32 + 0.5).to_bits()).collect();
    // Source (2, 3); along dimension 1: left 2, right 1.
    let (ids, inp) = (Buffer::new(&[2u32, 7, 0, 1]), Buffer::new(&source));
    let out = Buffer::<u32>::zeroed(4);
    module.launch_linear(
        "take_b4",
        4,
        &mut [
            argument(&4usize),
            ids.argument(),
            inp.argument(),
            out.argument(),
            argument(&1usize),
            argument(&3usize),
            argument(&1usize),
            argument(&one),
            argument(&dim_word(2)),
            argument(&IDS_U32),
            argument(&true),
        ],
    );
    assert_eq!(out.read(), [source[2], 0, source[3], source[4]]);
    assert_eq!(record.read(), [2, 7, 3]);

    // Scatter (2, 2) into (2, 3), adding: both elements of row 1 go to column 1, one of row 0 nowhere.
    let (module, record) = indexing();
    let ids = Buffer::new(&[0u32, 3, 1, 1]);
    let values = Buffer::new(&[1.0f32, 2.0, 3.0, 4.0].map(f32::to_bits));
    let target = Buffer::new(&[10.0f32; 6].map(f32::to_bits));
    let wanted = [
        ("add_f32", [11.0f32, 10.0, 10.0, 10.0, 17.0, 10.0]),
        ("scatter_u32", [1.0, 10.0, 10.0, 10.0, 4.0, 10.0]),
    ];
    for (kernel, wanted) in wanted {
        module.launch_linear(
            kernel,
            2,
            &mut [
                argument(&2usize),
                ids.argument(),
                argument(&0usize),
                argument(&0usize),
                values.argument(),
                target.argument(),
                argument(&2usize),
                argument(&3usize),
                argument(&one),
                argument(&one),
                argument(&IDS_U32),
                argument(&false),
            ],
        );
        assert_eq!(target.read(), wanted.map(f32::to_bits), "{kernel}");
    }
    assert_eq!(record.read(), [4, 3, 3]);

    // The last place of each element, plus one; the id 3 names none.
    let last = Buffer::<u32>::zeroed(6);
    module.launch_linear(
        "last_places",
        4,
        &mut [
            argument(&4usize),
            ids.argument(),
            last.argument(),
            argument(&3usize),
            argument(&one),
            argument(&dim_word(2)),
            argument(&IDS_U32),
        ],
    );
    assert_eq!(last.read(), [1, 0, 0, 0, 2, 0]);
}

/// Philox4x32-10 as described in the paper: the round function, then the key schedule.
fn philox(seed: u64, block: u64) -> [u32; 4] {
    let split = |value: u64| [value as u32, (value >> 32) as u32];
    let ([c0, c1], [mut k0, mut k1]) = (split(block), split(seed));
    let mut counter = [c0, c1, 0, 0];
    for _ in 0..10 {
        let [low0, high0] = split(u64::from(counter[0]) * 0xD251_1F53);
        let [low1, high1] = split(u64::from(counter[2]) * 0xCD9E_8D57);
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    counter
}

#[test]
fn the_host_formula_is_philox() {
    // Known answers from the authors' Random123 library.
    assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
}

fn random(kernel: &str, numel: usize, seed: u64, offset: u64, a: f64, b: f64, out: *mut std::ffi::c_void) {
    load(KernelModule::Random).launch_linear(
        kernel,
        numel,
        &mut [argument(&numel), argument(&seed), argument(&offset), argument(&a), argument(&b), out],
    );
}

#[test]
fn uniform_numbers_are_philox_words() {
    let (numel, seed, offset) = (1003, 0x1234_5678_9abc_def0, 0xffff_fffe);
    let out = Buffer::<u32>::zeroed(numel);
    random("rand_uniform_f32", numel, seed, offset, 0.0, 1.0, out.argument());
    for (index, bits) in out.read().into_iter().enumerate() {
        let word = philox(seed, offset + index as u64 / 4)[index % 4];
        assert_eq!(f32::from_bits(bits), (word >> 8) as f32 / 16_777_216.0, "element {index}");
    }
    let out = Buffer::<u64>::zeroed(numel);
    random("rand_uniform_f64", numel, seed, offset, -2.0, 2.0, out.argument());
    for (index, bits) in out.read().into_iter().enumerate() {
        let words = philox(seed, offset + index as u64 / 2);
        let [low, high] = [words[index % 2 * 2], words[index % 2 * 2 + 1]];
        let unit = (((u64::from(high) << 32) | u64::from(low)) >> 11) as f64 / 9_007_199_254_740_992.0;
        assert_eq!(f64::from_bits(bits), -2.0 + unit * 4.0, "element {index}");
    }
}

#[test]
fn normal_numbers_are_box_muller() {
    let (numel, seed, offset, mean, std) = (1001, 42u64, 5u64, 3.0, 0.5);
    let out = Buffer::<u32>::zeroed(numel);
    random("rand_normal_f32", numel, seed, offset, mean, std, out.argument());
    for (index, bits) in out.read().into_iter().enumerate() {
        let words = philox(seed, offset + index as u64 / 4);
        let pair = index % 4 / 2 * 2;
        let unit = |word: u32| f64::from(word >> 8) / 16_777_216.0;
        let radius = (-2.0 * (1.0 - unit(words[pair])).ln()).sqrt();
        let angle = std::f64::consts::TAU * unit(words[pair + 1]);
        let wanted = mean + std * radius * if index % 2 == 0 { angle.cos() } else { angle.sin() };
        let got = f64::from(f32::from_bits(bits));
        assert!((got - wanted).abs() < 1e-5, "element {index}: {got}, wanted {wanted}");
    }
}

/// Returns the form of a dtype in the kernels of casts, its number among the dtypes of this form, and their count.
fn cast_form(dtype: &str) -> (&'static str, usize, usize) {
    let forms: [(_, &[&str]); 5] = [
        ("u8", &["u8"]),
        ("f8e4m3", &["f8e4m3"]),
        ("b2", &["i16", "bf16", "f16"]),
        ("b4", &["u32", "i32", "f32"]),
        ("b8", &["i64", "f64"]),
    ];
    let found = forms.iter().find_map(|(form, dtypes)| {
        Some((*form, dtypes.iter().position(|known| *known == dtype)?, dtypes.len()))
    });
    found.unwrap()
}

/// Casts a column of a two-column matrix, to test the strided path as well. `dtypes` are the dtypes as FROM_TO.
fn cast<I: software_gpu::Element, O: software_gpu::Element>(
    module: &Module,
    dtypes: &str,
    inputs: &[I],
) -> Vec<O> {
    let (from, to) = dtypes.split_once('_').unwrap();
    let ((from, number, _), (to, to_number, count)) = (cast_form(from), cast_form(to));
    let (kernel, pair) = (&format!("cast_{from}_{to}"), number * count + to_number);
    let interleaved: Vec<I> = inputs.iter().flat_map(|&value| [value, I::default()]).collect();
    let (source, out) = (Buffer::new(&interleaved), Buffer::<O>::zeroed(inputs.len()));
    module.launch_linear(
        kernel,
        inputs.len(),
        &mut [
            argument(&inputs.len()),
            argument(&1usize),
            argument(&layout(&[inputs.len()], &[2])),
            argument(&pair),
            source.argument(),
            out.argument(),
        ],
    );
    let strided = out.read();
    let source = Buffer::new(inputs);
    module.launch_linear(
        kernel,
        inputs.len(),
        &mut [
            argument(&inputs.len()),
            argument(&0usize),
            argument(&[0usize; 32]),
            argument(&pair),
            source.argument(),
            out.argument(),
        ],
    );
    assert!(
        out.read().iter().zip(&strided).all(|(a, b)| a.to_bytes() == b.to_bytes()),
        "{dtypes}: strides matter"
    );
    strided
}

/// Numbers at and beyond the limits of every integer type.
fn floats() -> Vec<f64> {
    let mut floats = vec![
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        -1.0,
        1.5,
        2.5,
        -2.5,
        1e-310,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    for power in [7, 8, 15, 16, 31, 32, 63, 64] {
        let limit = 2f64.powi(power);
        floats.extend([
            limit,
            -limit,
            limit - 1.0,
            1.0 - limit,
            limit + 1.0,
            -limit - 1.0,
            limit * 1.5,
            -limit * 1.5,
        ]);
    }
    floats
}

#[test]
fn float_to_integer_casts_match_rust() {
    let module = load(KernelModule::Cast);
    let doubles = floats();
    let singles: Vec<f32> = doubles.iter().map(|&value| value as f32).collect();
    let f64_bits: Vec<u64> = doubles.iter().map(|value| value.to_bits()).collect();
    let f32_bits: Vec<u32> = singles.iter().map(|value| value.to_bits()).collect();
    macro_rules! check {
        ($name:literal, $integer:ty, $bits:ty) => {
            let wanted: Vec<$bits> = doubles.iter().map(|&value| value as $integer as $bits).collect();
            assert_eq!(cast::<_, $bits>(&module, concat!("f64_", $name), &f64_bits), wanted, $name);
            let wanted: Vec<$bits> = singles.iter().map(|&value| value as $integer as $bits).collect();
            assert_eq!(cast::<_, $bits>(&module, concat!("f32_", $name), &f32_bits), wanted, $name);
        };
    }
    check!("u8", u8, u8);
    check!("i16", i16, u16);
    check!("i32", i32, u32);
    check!("u32", u32, u32);
    check!("i64", i64, u64);
}

#[test]
fn integers_wrap_and_narrow_floats_round_through_f32() {
    let module = load(KernelModule::Cast);
    let integers: Vec<i64> = floats().iter().map(|&value| value as i64).collect();
    let bits: Vec<u64> = integers.iter().map(|&value| value as u64).collect();
    let wanted: Vec<u8> = integers.iter().map(|&value| value as u8).collect();
    assert_eq!(cast::<_, u8>(&module, "i64_u8", &bits), wanted);
    let wanted: Vec<u16> = integers.iter().map(|&value| value as u16).collect();
    assert_eq!(cast::<_, u16>(&module, "i64_i16", &bits), wanted);
    let wanted: Vec<u64> = integers.iter().map(|&value| (value as f64).to_bits()).collect();
    assert_eq!(cast::<_, u64>(&module, "i64_f64", &bits), wanted);
    let wanted: Vec<u16> = integers.iter().map(|&value| bf16::from_f32(value as f32).to_bits()).collect();
    assert_eq!(cast::<_, u16>(&module, "i64_bf16", &bits), wanted);
    let wanted: Vec<u16> = integers.iter().map(|&value| f16::from_f32(value as f32).to_bits()).collect();
    assert_eq!(cast::<_, u16>(&module, "i64_f16", &bits), wanted);
    let wanted: Vec<u8> = integers.iter().map(|&value| F8E4M3::from_f32(value as f32).to_bits()).collect();
    assert_eq!(cast::<_, u8>(&module, "i64_f8e4m3", &bits), wanted);
}
