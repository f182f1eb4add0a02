//! Compares kernels compiled for waves of 64 lanes with the same kernels for waves of 32, bit by bit.
mod software_gpu;

use std::path::Path;

use hip_kernels::code_object;
use hip_kernels::contract::dim_word;
use hip_kernels_build::compiler::Compiler;
use hip_kernels_build::sources::{PRELUDE, Tree};
use hip_kernels_build::target::Target;
use rocm_emulator::code_object::{CodeObject, ValueKind};
use software_gpu::{ARCH, Buffer, Module};

/// A module compiled for both wave sizes.
struct Both {
    modules: [Module; 2],
    /// Names of the kernels with the sizes of their arguments.
    kernels: Vec<(String, Vec<u32>)>,
}

/// A kernel argument.
enum Argument {
    Value(Vec<u8>),
    In(Vec<u8>),
    /// An output of this many bytes.
    Out(usize),
    Null,
}
use Argument::{In, Null, Out};

fn value<const N: usize>(bytes: [u8; N]) -> Argument {
    Argument::Value(bytes.to_vec())
}

fn size(value: usize) -> Argument {
    self::value(value.to_le_bytes())
}

fn int(value: u32) -> Argument {
    self::value(value.to_le_bytes())
}

/// Returns dims and strides as a by-value argument.
fn layout(dims: &[usize], strides: &[usize]) -> Argument {
    let words = dims
        .iter()
        .map(|&size| dim_word(size))
        .chain(strides.iter().copied())
        .chain(std::iter::repeat(0))
        .take(32);
    Argument::Value(words.flat_map(usize::to_le_bytes).collect())
}

/// Grid and workgroup size of a launch.
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    lds: u32,
}

fn linear(count: usize) -> Shape {
    rows(count.div_ceil(256), 256)
}

fn rows(rows: usize, block: u32) -> Shape {
    Shape { grid: [rows as u32, 1, 1], block: [block, 1, 1], lds: 0 }
}

impl Both {
    fn load(module: hip_kernels::Module) -> Self {
        let narrow = code_object(module, ARCH).unwrap().bytes;
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let work_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wave64-{}", module.name()));
        std::fs::create_dir_all(&work_dir).unwrap();
        let include = here.join("include");
        let tree = Tree::create(&here.join("../candle-kernels"), &work_dir).unwrap();
        let target = Target::parse(ARCH).unwrap().with_wave64();
        let path = work_dir.join("wave64.hsaco");
        Compiler::discover(std::slice::from_ref(&target))
            .unwrap()
            .compile(&tree.source(module.name()), &target, &[&include, tree.dir()], PRELUDE, &path)
            .unwrap()
            .unwrap_or_else(|message| panic!("{message}"));
        let wide = std::fs::read(&path).unwrap();
        let object = CodeObject::parse(&wide).unwrap();
        assert!(object.kernels.values().all(|kernel| !kernel.descriptor.wave32()));
        let kernels = object.kernels.iter().map(|(name, kernel)| {
            let arguments = kernel.metadata.arguments.iter();
            let explicit = arguments.filter(|argument| !matches!(argument.kind, ValueKind::Hidden(_)));
            (name.clone(), explicit.map(|argument| argument.size).collect())
        });
        Self { modules: [Module::load(&narrow), Module::load(&wide)], kernels: kernels.collect() }
    }

    /// Returns the kernels with this prefix and these sizes of arguments.
    fn kernels(&self, prefix: &str, sizes: &[u32]) -> Vec<&str> {
        let fits = |(name, found): &&(String, Vec<u32>)| name.starts_with(prefix) && found == sizes;
        let names: Vec<&str> = self.kernels.iter().filter(fits).map(|(name, _)| name.as_str()).collect();
        assert!(!names.is_empty(), "no kernel {prefix} with arguments of {sizes:?} bytes");
        names
    }

    /// Runs a kernel with both wave sizes and asserts equal outputs.
    fn compare(&self, kernel: &str, shape: &Shape, arguments: &[Argument]) {
        const UNTOUCHED: u8 = 0xa5;
        let [narrow, wide] = self.modules.each_ref().map(|module| {
            let buffers: Vec<Option<Buffer<u8>>> = arguments
                .iter()
                .map(|argument| match argument {
                    In(bytes) => Some(Buffer::new(bytes)),
                    Out(bytes) => Some(Buffer::new(&vec![UNTOUCHED; *bytes])),
                    Argument::Value(_) | Null => None,
                })
                .collect();
            let null = 0usize;
            let mut pointers: Vec<_> = arguments
                .iter()
                .zip(&buffers)
                .map(|(argument, buffer)| match (argument, buffer) {
                    (_, Some(buffer)) => buffer.argument(),
                    (Argument::Value(bytes), None) => bytes.as_ptr().cast_mut().cast(),
                    _ => software_gpu::argument(&null),
                })
                .collect();
            module.launch_with_lds(kernel, shape.grid, shape.block, shape.lds, &mut pointers);
            let written = arguments.iter().zip(&buffers).filter(|(argument, _)| matches!(argument, Out(_)));
            written.filter_map(|(_, buffer)| Some(buffer.as_ref()?.read())).collect::<Vec<_>>()
        });
        assert!(narrow.iter().flatten().any(|&byte| byte != UNTOUCHED), "{kernel} wrote nothing");
        for (narrow, wide) in narrow.iter().zip(&wide) {
            let differs = narrow.iter().zip(wide).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{kernel}: the first byte that depends on the wave size");
        }
    }
}

/// Returns pseudo-random bytes.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x853c_49e6_748f_ea9bu64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Returns random elements of a dtype: floats with magnitudes from 1/8 to 1, or any integers.
fn elements(dtype: &str, count: usize) -> Vec<u8> {
    let (width, top): (usize, &[(u8, u8)]) = match dtype {
        // Masks and values of the two highest bytes.
        "f64" => (8, &[(0x80, 0x3f), (0x1f, 0xc0)]),
        "f32" | "bf16" => (if dtype == "f32" { 4 } else { 2 }, &[(0x80, 0x3f), (0x7f, 0x00)]),
        "f16" => (2, &[(0x83, 0x38)]),
        "f8e4m3" => (1, &[(0x87, 0x30)]),
        "u8" => (1, &[]),
        "i16" => (2, &[]),
        "i64" => (8, &[]),
        _ => (4, &[]),
    };
    let mut bytes = noise(width * count);
    for element in bytes.chunks_mut(width) {
        for (byte, (keep, set)) in element.iter_mut().rev().zip(top) {
            *byte = *byte & keep | set;
        }
    }
    bytes
}

/// Returns the dtype at the end of a kernel's name.
fn dtype(kernel: &str) -> &str {
    kernel.rsplit('_').next().unwrap_or_default()
}

#[test]
fn reductions() {
    let both = Both::load(hip_kernels::Module::Reduce);
    let (results, each) = (7, 150);
    let of_rows = |width: u32, across: u32| {
        [size(results), size(each), int(width), int(across), size(1), size(2)].into_iter()
    };
    for (width, across, strides) in [(128, 0, [each, 1]), (8, 1, [1, results]), (1, 0, [each, 1])] {
        let shape = rows(results.div_ceil(256 / width as usize), 256);
        let layout = || [layout(&[results, each], &strides)];
        for kernel in both.kernels("reduce_sum_", &[8, 8, 4, 4, 8, 8, 256, 8, 8, 8, 8]) {
            // Parts are f32.
            let source = if dtype(kernel) == "parts" { "f32" } else { dtype(kernel) };
            let input = elements(source, results * each);
            let ends = [In(input), Out(8 * results), value(0.75f64.to_le_bytes()), size(0)];
            let arguments: Vec<_> = of_rows(width, across).chain(layout()).chain(ends).collect();
            both.compare(kernel, &shape, &arguments);
        }
        for kernel in both.kernels("reduce_variance_", &[8, 8, 4, 4, 8, 8, 256, 8, 8]) {
            let ends = [In(elements(dtype(kernel), results * each)), Out(8 * results)];
            let arguments: Vec<_> = of_rows(width, across).chain(layout()).chain(ends).collect();
            both.compare(kernel, &shape, &arguments);
        }
        for kernel in both.kernels("reduce_extreme_", &[8, 8, 4, 4, 8, 8, 256, 8, 8, 8, 8, 1]) {
            for smallest in [0, 1] {
                let source = In(noise(8 * results * each));
                let ends = [source, Null, Out(8 * results), Out(4 * results), value([smallest])];
                let arguments: Vec<_> = of_rows(width, across).chain(layout()).chain(ends).collect();
                both.compare(kernel, &shape, &arguments);
            }
        }
    }
}

#[test]
fn rows_are_normalised() {
    let both = Both::load(hip_kernels::Module::Rows);
    let (count, columns) = (5, 77);
    let numbers = |name: &str| In(elements(dtype(name), count * columns));
    let weights = |name: &str| In(elements(dtype(name), columns));
    let result = || Out(8 * count * columns);
    for (block, width) in [(32, 16), (64, 64), (256, 32), (1024, 1024)] {
        let shape = rows(count.div_ceil(block as usize / width as usize), block);
        let compare = |name: &str, head: Vec<Argument>, eps: Option<f32>| {
            // Rows are not split, so there are no statistics of parts.
            let shares = [count as u32, columns as u32, columns as u32, width].map(int);
            let tail = [Null].into_iter().chain(shares).chain(eps.map(|eps| value(eps.to_le_bytes())));
            both.compare(name, &shape, &head.into_iter().chain(tail).collect::<Vec<_>>());
        };
        for prefix in ["softmax_", "logsoftmax_"] {
            for name in both.kernels(prefix, &[8, 8, 8, 4, 4, 4, 4]) {
                compare(name, vec![numbers(name), result()], None);
            }
        }
        for name in both.kernels("rmsnorm_", &[8, 8, 8, 8, 4, 4, 4, 4, 4]) {
            compare(name, vec![numbers(name), result(), weights(name)], Some(1e-5));
        }
        for name in both.kernels("layernorm_", &[8, 8, 8, 8, 8, 4, 4, 4, 4, 4]) {
            compare(name, vec![numbers(name), result(), weights(name), weights(name)], Some(1e-5));
        }
    }
}

#[test]
fn sorting() {
    let both = Both::load(hip_kernels::Module::Sort);
    // Key parameters of 32-bit floats for all dtypes.
    let keys = || [1 << 31, 0x7f80_0000, 0].map(size);
    for (columns, width) in [(5, 2), (100, 32), (600, 256)] {
        let (count, block) = (9, 256);
        for kernel in both.kernels("asort_", &[8, 8, 8, 4, 4, 8, 8, 8]) {
            let head = [In(noise(8 * count * columns)), Out(4 * count * columns), size(count)];
            let ends = [int(columns as u32), int(width)];
            let shape = Shape { lds: 64 * block, ..rows(count * width as usize / 256 + 1, block) };
            both.compare(kernel, &shape, &head.into_iter().chain(ends).chain(keys()).collect::<Vec<_>>());
        }
    }
    let (count, columns, tiles) = (3, 5000, 3);
    let digit = || [int(columns as u32), int(tiles as u32), int(8)].into_iter().chain(keys());
    for kernel in both.kernels("asort_count_", &[8, 8, 4, 4, 4, 8, 8, 8]) {
        let head = [In(noise(8 * count * columns)), Out(1024 * count * tiles)];
        both.compare(kernel, &rows(count * tiles, 256), &head.into_iter().chain(digit()).collect::<Vec<_>>());
    }
    for tiles in [1, 7, 300] {
        let lists = 19;
        let arguments = [In(noise(4 * lists * tiles)), Out(4 * lists), size(lists), int(tiles as u32)];
        both.compare("asort_sum", &linear(32 * lists), &arguments);
    }
    // One tile: counts of zero, and totals for elements that all have the same digit.
    for kernel in both.kernels("asort_move_", &[8, 8, 8, 8, 8, 8, 4, 4, 4, 8, 8, 8]) {
        let total = |digit: usize| (if digit == 0xa5 { 1500u32 } else { 0 }).to_le_bytes();
        let head = [In(vec![0xa5; 8 * 1500]), Null, Out(8 * 1500), Out(4 * 1500), In(vec![0; 1024])];
        let totals = In((0..256).flat_map(total).collect());
        let ends = [int(1500), int(1), int(0)].into_iter().chain([0, 0, 0].map(size));
        let arguments: Vec<_> = head.into_iter().chain([totals]).chain(ends).collect();
        both.compare(kernel, &rows(1, 256), &arguments);
    }
}

#[test]
fn indexing() {
    let both = Both::load(hip_kernels::Module::Indexing);
    let record = Buffer::<u64>::zeroed(3);
    both.modules.iter().for_each(|module| module.set_pointer("candle_fault", &record));
    // Sizes: left, source dim, indices, right.
    let (left, dim, count, right) = (3, 19, 11, 5);
    // Bytes of indices by their number in the contract: u8, u32, i64, i16, i32.
    let widths = [1, 4, 8, 2, 4];
    let places = |ids_dtype: usize, total: usize, bound: usize| {
        let place = |i: usize| (i * 7 % bound).to_le_bytes()[..widths[ids_dtype]].to_vec();
        In((0..total).flat_map(place).collect())
    };
    let numbers = |total: usize| In(noise(8 * total));
    let numel = left * count * right;
    for (ids_dtype, is_one_per_element) in (0..widths.len()).flat_map(|dtype| [(dtype, false), (dtype, true)])
    {
        let ids = || places(ids_dtype, if is_one_per_element { numel } else { count }, dim);
        for kernel in both.kernels("take_", &[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1]) {
            // Rows in units of 16 bytes.
            let head = [size(numel), ids(), In(noise(16 * left * dim * right)), Out(16 * numel)];
            let tail = [1, dim, right, dim_word(right), dim_word(count), ids_dtype].map(size);
            let ends = [value([u8::from(is_one_per_element)])];
            let arguments: Vec<_> = head.into_iter().chain(tail).chain(ends).collect();
            both.compare(kernel, &linear(numel), &arguments);
        }
        for prefix in ["scatter_", "add_"] {
            for kernel in both.kernels(prefix, &[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1]) {
                // Sequentially, with one thread for each place outside of the dim.
                let out = Out(8 * left * dim * right);
                let head = [size(left * right), ids(), Null, Null, numbers(numel), out];
                let tail = [count, dim, dim_word(right), dim_word(1), ids_dtype].map(size);
                let ends = [value([u8::from(!is_one_per_element)])];
                let arguments: Vec<_> = head.into_iter().chain(tail).chain(ends).collect();
                both.compare(kernel, &linear(left * right), &arguments);
            }
        }
    }
    assert_eq!(record.read(), [0, 0, 0], "no index is out of range");
}
