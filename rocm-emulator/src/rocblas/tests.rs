//! Compares products with a triple loop in f64, for every operation, element type, stride and scalar.
use super::compute;
use super::problem::{Operand, Place, Problem, Scalar};
use super::types::{DataType, Operation, Status, Types};
use crate::exec::{AddressSpace, Range};
use crate::runtime::ErrorCode;
use half::{bf16, f16};

/// A device allocation of a test.
struct Buffer {
    bytes: Vec<u64>,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        Self { bytes: vec![0; len.div_ceil(8).max(1)], len }
    }

    fn address(&mut self) -> usize {
        self.bytes.as_mut_ptr().expose_provenance()
    }

    fn range(&mut self) -> Range {
        Range { base: self.address() as u64, len: self.len as u64, writable: true }
    }

    fn get(&self, kind: DataType, index: usize) -> f64 {
        let at = index * kind.bytes();
        let byte = |offset: usize| self.bytes[(at + offset) / 8].to_le_bytes()[(at + offset) % 8];
        let two = u16::from_le_bytes([byte(0), byte(1 % kind.bytes())]);
        let four = || u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]);
        match kind {
            DataType::F64 => f64::from_bits(self.bytes[index]),
            DataType::F32 => f64::from(f32::from_bits(four())),
            DataType::I32 => f64::from(four() as i32),
            DataType::F16 => f16::from_bits(two).to_f64(),
            DataType::Bf16 => bf16::from_bits(two).to_f64(),
            DataType::I8 => f64::from(byte(0) as i8),
            DataType::F8 | DataType::F8Fnuz => panic!("not in rocBLAS"),
        }
    }

    fn set(&mut self, kind: DataType, index: usize, value: f64) {
        let bytes: Vec<u8> = match kind {
            DataType::F64 => value.to_le_bytes().to_vec(),
            DataType::F32 => (value as f32).to_le_bytes().to_vec(),
            DataType::I32 => (value as i32).to_le_bytes().to_vec(),
            DataType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            DataType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            DataType::I8 => (value as i8).to_le_bytes().to_vec(),
            DataType::F8 | DataType::F8Fnuz => panic!("not in rocBLAS"),
        };
        for (offset, byte) in bytes.into_iter().enumerate() {
            let at = index * kind.bytes() + offset;
            let mut word = self.bytes[at / 8].to_le_bytes();
            word[at % 8] = byte;
            self.bytes[at / 8] = u64::from_le_bytes(word);
        }
    }
}

/// Returns small multiples of 1/4, which every floating-point type represents exactly, like their products.
fn sample(seed: usize, integral: bool) -> f64 {
    let step = (seed.wrapping_mul(2_654_435_761) >> 7) % 17;
    let value = step as f64 - 8.0;
    if integral { value } else { value / 4.0 }
}

/// A problem with the memory of A, B, C and D, each with one spare element at the end.
struct Case {
    problem: Problem,
    buffers: [Buffer; 4],
    strides: [usize; 4],
}

struct Shape {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    /// Added to every leading dimension.
    slack: usize,
}

impl Case {
    fn new(types: Types, ops: [Operation; 2], shape: &Shape, alpha: f64, beta: f64, in_place: bool) -> Self {
        let Shape { m, n, k, batch, slack } = *shape;
        let stored =
            |op, rows, columns| if op == Operation::None { (rows, columns) } else { (columns, rows) };
        let shapes = [stored(ops[0], m, k), stored(ops[1], k, n), (m, n), (m, n)];
        let kinds = [types.input, types.input, types.output, types.output];
        let lds = shapes.map(|(rows, _)| rows + slack);
        // Also leaves gaps between the matrices of a batch.
        let strides = [0, 1, 2, 3].map(|i| lds[i] * shapes[i].1 + 3 * slack);
        let integral = types.input == DataType::I8;
        let mut seed = 1;
        let mut buffers = [0, 1, 2, 3].map(|i| {
            let elements = strides[i] * batch;
            let mut buffer = Buffer::new(elements * kinds[i].bytes());
            for index in 0..elements {
                seed += 1;
                buffer.set(kinds[i], index, sample(seed, integral));
            }
            buffer
        });
        let addresses = [0, 1, 2, 3].map(|i| buffers[i].address());
        let operand = |i: usize| Operand {
            place: Place::Strided { base: addresses[i], stride: strides[i] as i64 },
            ld: lds[i] as i32,
        };
        let problem = Problem {
            function: "test",
            types,
            op_a: ops[0],
            op_b: ops[1],
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: Scalar::Host(alpha),
            beta: Scalar::Host(beta),
            a: operand(0),
            b: operand(1),
            c: operand(if in_place { 3 } else { 2 }),
            d: operand(3),
            batch: batch as i32,
            bias: None,
            gelu: false,
        };
        Self { problem, buffers, strides }
    }

    fn memory(&mut self) -> AddressSpace {
        let ranges = self.buffers.iter_mut().map(Buffer::range).collect();
        // SAFETY: the buffers live as long as the case and are not borrowed while a product runs.
        unsafe { AddressSpace::from_ranges(ranges) }
    }

    fn run(&mut self, threads: usize) -> crate::runtime::Result<()> {
        assert_eq!(self.problem.check(), Status::Continue);
        let memory = self.memory();
        // SAFETY: the buffers live as long as the case and are not borrowed during the call.
        unsafe { compute::run(&self.problem, &memory, threads) }
    }

    /// Returns the expected contents of D's whole buffer, including gaps, by the definition of the product.
    fn expected(&self, alpha: f64, beta: f64) -> Vec<f64> {
        let problem = &self.problem;
        let (input, output) = (problem.types.input, problem.types.output);
        let [m, n, k] = [problem.m, problem.n, problem.k].map(|size| size as usize);
        let [lda, ldb, ldc, ldd] =
            [problem.a.ld, problem.b.ld, problem.c.ld, problem.d.ld].map(|ld| ld as usize);
        let c = if problem.c == problem.d { 3 } else { 2 };
        let mut all: Vec<f64> =
            (0..self.strides[3] * problem.batch as usize).map(|i| self.buffers[3].get(output, i)).collect();
        for batch in 0..problem.batch as usize {
            let at = |i: usize| batch * self.strides[i];
            for column in 0..n {
                for row in 0..m {
                    let mut sum = 0.0;
                    for depth in 0..k {
                        let left = match problem.op_a {
                            Operation::None => at(0) + depth * lda + row,
                            Operation::Transpose => at(0) + row * lda + depth,
                        };
                        let right = match problem.op_b {
                            Operation::None => at(1) + column * ldb + depth,
                            Operation::Transpose => at(1) + depth * ldb + column,
                        };
                        sum += self.buffers[0].get(input, left) * self.buffers[1].get(input, right);
                    }
                    let before = self.buffers[c].get(output, at(c) + column * ldc + row);
                    let value = if beta == 0.0 { alpha * sum } else { alpha * sum + beta * before };
                    // Rounded once to the output type.
                    let mut one = Buffer::new(8);
                    one.set(output, 0, value);
                    all[at(3) + column * ldd + row] = one.get(output, 0);
                }
            }
        }
        all
    }

    fn result(&self) -> Vec<f64> {
        let elements = self.strides[3] * self.problem.batch as usize;
        (0..elements).map(|i| self.buffers[3].get(self.problem.types.output, i)).collect()
    }
}

const OPERATIONS: [Operation; 2] = [Operation::None, Operation::Transpose];

fn all_types() -> Vec<Types> {
    use DataType::{Bf16, F16, F32, F64, I8, I32};
    [
        (F64, F64, F64),
        (F32, F32, F32),
        (F16, F16, F16),
        (F16, F16, F32),
        (F16, F32, F32),
        (Bf16, Bf16, F32),
        (Bf16, F32, F32),
        (I8, I32, I32),
    ]
    .map(|(input, output, scalar)| Types { input, output, scalar })
    .to_vec()
}

#[test]
fn every_operation_and_type_agrees_with_the_definition() {
    let shapes = [
        Shape { m: 1, n: 1, k: 1, batch: 1, slack: 0 },
        Shape { m: 7, n: 5, k: 3, batch: 1, slack: 2 },
        Shape { m: 1, n: 9, k: 17, batch: 4, slack: 1 },
        Shape { m: 20, n: 1, k: 33, batch: 2, slack: 0 },
        Shape { m: 37, n: 29, k: 64, batch: 3, slack: 5 },
    ];
    for types in all_types() {
        for op_a in OPERATIONS {
            for op_b in OPERATIONS {
                for shape in &shapes {
                    for (alpha, beta) in [(1.0, 0.0), (2.0, 1.0), (-1.0, 2.0), (0.0, 2.0), (0.0, 0.0)] {
                        for in_place in [true, false] {
                            let mut case = Case::new(types, [op_a, op_b], shape, alpha, beta, in_place);
                            let expected = case.expected(alpha, beta);
                            case.run(1).unwrap();
                            let (m, n, k) = (shape.m, shape.n, shape.k);
                            assert_eq!(
                                case.result(),
                                expected,
                                "{types:?} {op_a:?} {op_b:?} {m}x{n}x{k} alpha {alpha} beta {beta}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_result() {
    for (types, batch) in [(Types::uniform(DataType::F32), 1), (Types::uniform(DataType::F16), 24)] {
        let shape = Shape { m: 130, n: 70, k: 96, batch, slack: 1 };
        let mut case = Case::new(types, [Operation::None, Operation::Transpose], &shape, 1.0, 0.0, true);
        let expected = case.expected(1.0, 0.0);
        case.run(4).unwrap();
        assert_eq!(case.result(), expected, "{types:?}");
    }
}

#[test]
fn a_matrix_can_be_shared_by_the_whole_batch() {
    for types in [Types::uniform(DataType::F32), Types::uniform(DataType::F16)] {
        let shape = Shape { m: 6, n: 4, k: 5, batch: 3, slack: 0 };
        let mut case = Case::new(types, [Operation::None; 2], &shape, 1.0, 0.0, true);
        let Place::Strided { base, .. } = case.problem.b.place else { panic!("strided") };
        case.problem.b.place = Place::Strided { base, stride: 0 };
        case.strides[1] = 0;
        let expected = case.expected(1.0, 0.0);
        case.run(1).unwrap();
        assert_eq!(case.result(), expected);
    }
}

#[test]
fn matrix_addresses_are_read_from_device_memory() {
    let shape = Shape { m: 6, n: 4, k: 5, batch: 3, slack: 1 };
    let types =
        Types::new(DataType::Bf16, DataType::Bf16, DataType::Bf16, DataType::Bf16, DataType::F32).unwrap();
    let mut case = Case::new(types, [Operation::Transpose, Operation::None], &shape, 1.0, 1.0, true);
    let expected = case.expected(1.0, 1.0);
    let mut lists = Buffer::new(4 * 3 * 8);
    let start = lists.address();
    for i in 0..4 {
        let bytes = if i < 2 { types.input.bytes() } else { types.output.bytes() };
        for index in 0..3 {
            // In reverse order, so that the addresses must be used.
            let address = case.buffers[i].address() + (2 - index) * case.strides[i] * bytes;
            lists.bytes[i * 3 + index] = address as u64;
        }
    }
    let place = |i: usize| Place::Pointers { array: start + i * 24 };
    (case.problem.a.place, case.problem.b.place) = (place(0), place(1));
    (case.problem.c.place, case.problem.d.place) = (place(3), place(3));
    let mut ranges: Vec<Range> = case.buffers.iter_mut().map(Buffer::range).collect();
    ranges.push(lists.range());
    // SAFETY: the buffers outlive the call and are not borrowed during it.
    unsafe { compute::run(&case.problem, &AddressSpace::from_ranges(ranges), 1) }.unwrap();
    assert_eq!(case.result(), expected);

    let error = case.run(1).unwrap_err();
    assert!(error.detail.contains("the address of matrix A of product 0"), "{error:?}");
}

#[test]
fn beta_zero_does_not_read_c() {
    for types in [Types::uniform(DataType::F32), Types::uniform(DataType::F16)] {
        for alpha in [0.0, 1.0] {
            let shape = Shape { m: 5, n: 4, k: 3, batch: 1, slack: 0 };
            let mut case = Case::new(types, [Operation::None; 2], &shape, alpha, 0.0, true);
            (0..20).for_each(|i| case.buffers[3].set(types.output, i, f64::NAN));
            let expected = case.expected(alpha, 0.0);
            case.run(1).unwrap();
            assert_eq!(case.result(), expected);
        }
    }
}

#[test]
fn alpha_zero_does_not_read_a_and_b() {
    let types = Types::uniform(DataType::F64);
    let shape = Shape { m: 5, n: 4, k: 3, batch: 1, slack: 0 };
    let mut case = Case::new(types, [Operation::None; 2], &shape, 0.0, 3.0, true);
    let expected = case.expected(0.0, 3.0);
    case.problem.a.place = Place::Strided { base: 0, stride: 0 };
    case.problem.b.place = Place::Strided { base: 64, stride: 0 };
    case.run(1).unwrap();
    assert_eq!(case.result(), expected);
}

#[test]
fn nan_and_infinity_propagate() {
    for types in [Types::uniform(DataType::F32), Types::uniform(DataType::F16)] {
        let shape = Shape { m: 3, n: 2, k: 4, batch: 1, slack: 0 };
        let mut case = Case::new(types, [Operation::None; 2], &shape, 1.0, 0.0, true);
        case.buffers[0].set(types.input, 0, f64::NAN);
        case.buffers[0].set(types.input, 1, f64::INFINITY);
        (0..8).for_each(|i| case.buffers[1].set(types.input, i, 1.0));
        case.run(1).unwrap();
        let result = case.result();
        assert!(result[0].is_nan() && result[1] == f64::INFINITY && result[2].is_finite(), "{result:?}");
    }
}

#[test]
fn half_precision_is_rounded_once() {
    // 2048 + 1 + 1 is 2050 in f32; with rounding to f16 after each addition the sum would stay at 2048.
    let types = Types::uniform(DataType::F16);
    let shape = Shape { m: 1, n: 1, k: 3, batch: 1, slack: 0 };
    let mut case = Case::new(types, [Operation::None; 2], &shape, 1.0, 0.0, true);
    for (i, value) in [2048.0, 1.0, 1.0].into_iter().enumerate() {
        case.buffers[0].set(DataType::F16, i, value);
        case.buffers[1].set(DataType::F16, i, 1.0);
    }
    case.run(1).unwrap();
    assert_eq!(case.result(), [2050.0]);
}

#[test]
fn scalars_may_be_in_device_memory() {
    for (types, bytes) in [(Types::uniform(DataType::F16), 2), (Types::uniform(DataType::F64), 8)] {
        let shape = Shape { m: 4, n: 3, k: 2, batch: 1, slack: 0 };
        let mut case = Case::new(types, [Operation::None; 2], &shape, 2.0, -1.0, false);
        let expected = case.expected(2.0, -1.0);
        let mut scalars = Buffer::new(2 * bytes);
        scalars.set(types.scalar, 0, 2.0);
        scalars.set(types.scalar, 1, -1.0);
        case.problem.alpha = Scalar::Device(scalars.address());
        case.problem.beta = Scalar::Device(scalars.address() + bytes);
        let mut ranges: Vec<Range> = case.buffers.iter_mut().map(Buffer::range).collect();
        ranges.push(scalars.range());
        // SAFETY: the buffers outlive the call and are not borrowed during it.
        unsafe { compute::run(&case.problem, &AddressSpace::from_ranges(ranges), 1) }.unwrap();
        assert_eq!(case.result(), expected);
        let error = case.run(1).unwrap_err();
        assert!(error.detail.contains("a scalar"), "{error:?}");
    }
}

#[test]
fn faults_name_matrices_outside_live_memory() {
    let shape = Shape { m: 4, n: 3, k: 2, batch: 2, slack: 0 };
    let new = || Case::new(Types::uniform(DataType::F32), [Operation::None; 2], &shape, 1.0, 1.0, false);
    let fault = |case: &mut Case| {
        let before = case.result();
        let error = case.run(1).unwrap_err();
        assert_eq!(error.code, ErrorCode::IllegalAddress);
        assert_eq!(case.result(), before, "nothing is written");
        error.detail
    };
    for (index, name) in [(0, "matrix A"), (1, "matrix B"), (2, "matrix C"), (3, "matrix D")] {
        let mut short = new();
        short.buffers[index].len -= 4;
        let text = fault(&mut short);
        assert!(text.contains(name) && text.contains("of product 1"), "{text}");
        assert!(text.contains("reaches 4 bytes past the end"), "{text}");
    }
    let mut gone = new();
    gone.problem.a.place = Place::Strided { base: 4096, stride: 0 };
    let text = fault(&mut gone);
    assert!(text.contains("is not live memory") && text.contains("0x1000"), "{text}");
    let mut odd = new();
    odd.problem.a.place = Place::Strided { base: odd.buffers[0].address() + 1, stride: 0 };
    let text = fault(&mut odd);
    assert!(text.contains("not aligned to 4"), "{text}");
    let mut read_only = new();
    let mut ranges: Vec<Range> = read_only.buffers.iter_mut().map(Buffer::range).collect();
    ranges[3].writable = false;
    // SAFETY: the buffers outlive the call and are not borrowed during it.
    let error =
        unsafe { compute::run(&read_only.problem, &AddressSpace::from_ranges(ranges), 1) }.unwrap_err();
    assert!(error.detail.contains("matrix D") && error.detail.contains("not writable"), "{error:?}");
}

#[test]
fn arguments_are_checked_as_rocblas_does() {
    let shape = Shape { m: 4, n: 3, k: 2, batch: 2, slack: 0 };
    let problem =
        Case::new(Types::uniform(DataType::F32), [Operation::None; 2], &shape, 1.0, 1.0, true).problem;
    let status = |change: &dyn Fn(&mut Problem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        changed.check()
    };
    let nowhere = Place::Strided { base: 0, stride: 0 };
    assert_eq!(status(&|_| ()), Status::Continue);
    // Sizes and leading dimensions; A is 4 x 2, or 2 x 4 if transposed.
    assert_eq!(status(&|p| p.m = -1), Status::InvalidSize);
    assert_eq!(status(&|p| p.n = -1), Status::InvalidSize);
    assert_eq!(status(&|p| p.k = -1), Status::InvalidSize);
    assert_eq!(status(&|p| p.batch = -1), Status::InvalidSize);
    assert_eq!(status(&|p| p.a.ld = 3), Status::InvalidSize);
    assert_eq!(status(&|p| (p.op_a, p.a.ld) = (Operation::Transpose, 2)), Status::Continue);
    assert_eq!(status(&|p| (p.op_a, p.a.ld) = (Operation::Transpose, 1)), Status::InvalidSize);
    assert_eq!(status(&|p| p.b.ld = 1), Status::InvalidSize);
    assert_eq!(status(&|p| (p.op_b, p.b.ld) = (Operation::Transpose, 2)), Status::InvalidSize);
    assert_eq!(status(&|p| (p.c.ld, p.d.ld) = (3, 3)), Status::InvalidSize);
    assert_eq!(status(&|p| p.d.ld = 5), Status::InvalidValue, "C and D overlap with different layouts");
    // An empty product succeeds before pointers are checked.
    assert_eq!(status(&|p| (p.m, p.a.place) = (0, nowhere)), Status::Success);
    assert_eq!(status(&|p| (p.n, p.a.place) = (0, nowhere)), Status::Success);
    assert_eq!(status(&|p| (p.batch, p.a.place) = (0, nowhere)), Status::Success);
    assert_eq!(
        status(&|p| (p.alpha, p.a.place) = (Scalar::Host(0.0), nowhere)),
        Status::Success,
        "beta is 1"
    );
    assert_eq!(status(&|p| p.k = 0), Status::Success, "beta is 1");
    assert_eq!(status(&|p| (p.k, p.beta) = (0, Scalar::Host(0.0))), Status::Continue, "D is cleared");
    // Null pointers.
    assert_eq!(status(&|p| p.a.place = nowhere), Status::InvalidPointer);
    assert_eq!(status(&|p| p.b.place = nowhere), Status::InvalidPointer);
    assert_eq!(status(&|p| (p.c.place, p.d.place) = (nowhere, nowhere)), Status::InvalidPointer);
    assert_eq!(status(&|p| p.alpha = Scalar::Missing), Status::InvalidPointer);
    assert_eq!(status(&|p| p.beta = Scalar::Missing), Status::InvalidPointer);
    assert_eq!(
        status(&|p| (p.alpha, p.k, p.beta) = (Scalar::Missing, 0, Scalar::Host(2.0))),
        Status::Continue
    );
}

#[test]
fn a_panic_in_a_function_returns_an_error_status() {
    let status = super::functions::answer("test", || panic!("on purpose"));
    assert_eq!(status, Status::InternalError as u32);
    assert!(
        crate::last_error().is_some_and(|text| text.contains("test: the software GPU failed: on purpose"))
    );
}
