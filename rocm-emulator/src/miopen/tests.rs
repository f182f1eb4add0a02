//! Compares convolutions of every direction with the definition, computed by index in f64.
use super::compute::{self, Job, WORKSPACE_FILL};
use super::descriptor::{Convolution, Tensor};
use super::problem::{Direction, INPUT, OUTPUT, Problem, WEIGHTS};
use super::solution;
use super::status::{Outcome, Status};
use crate::exec::{AddressSpace, Range};
use crate::runtime::ErrorCode;
use half::{bf16, f16};

const F16: u32 = 0;
const F32: u32 = 1;
const BF16: u32 = 5;
const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights];

fn bytes_of(kind: u32) -> usize {
    if kind == F32 { 4 } else { 2 }
}

/// A device allocation of a test.
struct Buffer {
    words: Vec<u32>,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(4)], len }
    }

    fn address(&mut self) -> usize {
        self.words.as_mut_ptr().expose_provenance()
    }

    fn range(&mut self) -> Range {
        Range { base: self.address() as u64, len: self.len as u64, writable: true }
    }

    fn get(&self, kind: u32, index: usize) -> f64 {
        let half = (self.words[index * bytes_of(kind) / 4] >> (index % 2 * 16)) as u16;
        match kind {
            F32 => f64::from(f32::from_bits(self.words[index])),
            F16 => f16::from_bits(half).to_f64(),
            _ => bf16::from_bits(half).to_f64(),
        }
    }

    fn set(&mut self, kind: u32, index: usize, value: f64) {
        let half = match kind {
            F32 => return self.words[index] = (value as f32).to_bits(),
            F16 => f16::from_f64(value).to_bits(),
            _ => bf16::from_f64(value).to_bits(),
        };
        let (word, shift) = (&mut self.words[index / 2], index % 2 * 16);
        *word = *word & !(0xffff << shift) | u32::from(half) << shift;
    }
}

/// A convolution's sizes and the memory layout of its tensors.
#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    input: [usize; 2],
    filter: [usize; 2],
    padding: [i32; 2],
    stride: [i32; 2],
    dilation: [i32; 2],
    layout: Memory,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Packed,
    /// Two spare elements after each row, five after each image.
    Gaps,
    /// The channels are the innermost dimension.
    ChannelsLast,
}

const PLAIN: Shape = Shape {
    batch: 2,
    channels: 3,
    filters: 4,
    groups: 1,
    input: [5, 6],
    filter: [3, 2],
    padding: [0, 0],
    stride: [1, 1],
    dilation: [1, 1],
    layout: Memory::Packed,
};

fn shapes() -> Vec<Shape> {
    vec![
        PLAIN,
        Shape { padding: [1, 2], stride: [2, 1], ..PLAIN },
        Shape { padding: [3, 2], dilation: [2, 3], layout: Memory::Gaps, ..PLAIN },
        Shape { stride: [2, 3], dilation: [2, 1], padding: [1, 0], layout: Memory::ChannelsLast, ..PLAIN },
        Shape { channels: 6, filters: 4, groups: 2, padding: [1, 1], layout: Memory::Gaps, ..PLAIN },
        Shape { channels: 4, filters: 8, groups: 4, stride: [2, 2], padding: [1, 1], ..PLAIN },
        Shape { channels: 8, filters: 16, filter: [1, 1], stride: [3, 2], ..PLAIN },
        Shape { batch: 1, channels: 1, filters: 1, input: [1, 9], filter: [1, 4], padding: [2, 3], ..PLAIN },
    ]
}

impl Shape {
    fn convolution(&self) -> Convolution {
        let plain = Convolution::new(0, self.padding, self.stride, self.dilation).unwrap();
        Convolution { groups: self.groups, ..plain }
    }

    /// Input, weights, output.
    fn dims(&self) -> [[usize; 4]; 3] {
        let output = [0, 1].map(|i| {
            let [padding, stride, dilation] =
                [self.padding, self.stride, self.dilation].map(|of| of[i] as usize);
            (self.input[i] + 2 * padding - dilation * (self.filter[i] - 1) - 1) / stride + 1
        });
        [
            [self.batch, self.channels, self.input[0], self.input[1]],
            [self.filters, self.channels / self.groups, self.filter[0], self.filter[1]],
            [self.batch, self.filters, output[0], output[1]],
        ]
    }

    fn tensor(&self, kind: u32, [n, c, h, w]: [usize; 4]) -> Tensor {
        let strides = match self.layout {
            Memory::Packed => [c * h * w, h * w, w, 1],
            Memory::Gaps => [c * h * (w + 2) + 5, h * (w + 2), w + 2, 1],
            Memory::ChannelsLast => [h * w * c, 1, w * c, c],
        };
        Tensor::new(kind, &[n, c, h, w].map(|dim| dim as i32), Some(&strides.map(|step| step as i32)))
            .unwrap()
    }

    fn problem(&self, kind: u32, direction: Direction) -> Problem {
        Problem::new(direction, self.convolution(), self.dims().map(|dims| self.tensor(kind, dims))).unwrap()
    }
}

/// A problem with initialized memory.
struct Case {
    kind: u32,
    job: Job,
    buffers: [Buffer; 3],
    workspace: Buffer,
}

/// Returns multiples of 1/4 from -2 to 2, which every type represents exactly, like their products.
fn sample(seed: usize) -> f64 {
    ((seed.wrapping_mul(2_654_435_761) >> 7) % 17) as f64 / 4.0 - 2.0
}

impl Case {
    fn new(shape: &Shape, kind: u32, direction: Direction) -> Self {
        let problem = shape.problem(kind, direction);
        let mut seed = 0;
        let mut buffers = problem.layouts.each_ref().map(|layout| {
            let last: usize = (0..4).map(|i| (layout.dims[i] - 1) * layout.strides[i]).sum();
            let mut buffer = Buffer::new((last + 1) * bytes_of(kind));
            for index in 0..=last {
                seed += 1;
                buffer.set(kind, index, sample(seed));
            }
            buffer
        });
        let addresses = buffers.each_mut().map(Buffer::address);
        let workspace = Buffer::new(64);
        let job = Job { function: "test", problem, addresses, workspace: 0, workspace_size: 0 };
        Self { kind, job, buffers, workspace }
    }

    fn run(&mut self, threads: usize) -> crate::runtime::Result<()> {
        let mut ranges: Vec<Range> = self.buffers.iter_mut().map(Buffer::range).collect();
        ranges.push(self.workspace.range());
        // SAFETY: the buffers live as long as the case and are not borrowed while it runs.
        unsafe { compute::run(&self.job, &AddressSpace::from_ranges(ranges), threads) }
    }

    fn place(&self, tensor: usize, index: [usize; 4]) -> usize {
        let strides = self.job.problem.layouts[tensor].strides;
        (0..4).map(|i| index[i] * strides[i]).sum()
    }

    /// Returns the expected contents of the result's whole buffer, including gaps, by the definition: each product of an
    /// input element and a weight belongs to one element of the output.
    fn expected(&self, shape: &Shape) -> Vec<f64> {
        let direction = self.job.problem.direction;
        let target = match direction {
            Direction::Forward => OUTPUT,
            Direction::BackwardData => INPUT,
            Direction::BackwardWeights => WEIGHTS,
        };
        let mut all = self.held(target);
        let dims = shape.dims();
        let mut sums = vec![0.0; all.len()];
        let [n, k, ho, wo] = dims[OUTPUT];
        let [_, c, kh, kw] = dims[WEIGHTS];
        for index in 0..n * k * ho * wo * c * kh * kw {
            let mut rest = index;
            let [image, filter, y, x, channel, row, column] = [n, k, ho, wo, c, kh, kw].map(|size| {
                let part = rest % size;
                rest /= size;
                part
            });
            let at = |i: usize, out: usize, tap: usize| {
                (out * shape.stride[i] as usize + tap * shape.dilation[i] as usize)
                    .checked_sub(shape.padding[i] as usize)
                    .filter(|place| *place < shape.input[i])
            };
            let (Some(input_y), Some(input_x)) = (at(0, y, row), at(1, x, column)) else { continue };
            let group = filter / (k / shape.groups);
            let places = [
                self.place(INPUT, [image, group * c + channel, input_y, input_x]),
                self.place(WEIGHTS, [filter, channel, row, column]),
                self.place(OUTPUT, [image, filter, y, x]),
            ];
            let factors = (0..3).filter(|tensor| *tensor != target);
            let product: f64 =
                factors.map(|tensor| self.buffers[tensor].get(self.kind, places[tensor])).product();
            sums[places[target]] += product;
        }
        let [a, b, c, d] = dims[target];
        for index in 0..a * b * c * d {
            let place =
                self.place(target, [index / (b * c * d), index / (c * d) % b, index / d % c, index % d]);
            let mut one = Buffer::new(4);
            one.set(self.kind, 0, sums[place]);
            all[place] = one.get(self.kind, 0);
        }
        all
    }

    fn held(&self, tensor: usize) -> Vec<f64> {
        let buffer = &self.buffers[tensor];
        (0..buffer.len / bytes_of(self.kind)).map(|index| buffer.get(self.kind, index)).collect()
    }

    fn result(&self) -> Vec<f64> {
        self.held(self.job.problem.direction.target())
    }
}

#[test]
fn every_direction_and_type_agrees_with_the_definition() {
    for shape in shapes() {
        for kind in [F16, F32, BF16] {
            for direction in DIRECTIONS {
                let mut case = Case::new(&shape, kind, direction);
                let target = direction.target();
                // The previous content must not matter.
                let before = case.place(target, [0; 4]);
                case.buffers[target].set(kind, before, f64::NAN);
                let expected = case.expected(&shape);
                case.run(1).unwrap();
                assert_eq!(case.result(), expected, "{direction:?} of type {kind}, {shape:?}");
            }
        }
    }
}

/// Covers filter elements that always fall on padding, filters wider than the input and strides beyond it, for every
/// size along either dimension and in every direction.
#[test]
fn small_inputs_and_wide_filters_agree_with_the_definition() {
    let plain = Shape { batch: 1, channels: 2, filters: 3, input: [2, 1], filter: [2, 1], ..PLAIN };
    let mut computed = 0;
    for case in 0..3 * 5 * 6 * 4 * 3 * 2 {
        let (input, filter) = (1 + case % 3, 1 + case / 3 % 5);
        let steps = [case / 15 % 6, 1 + case / 90 % 4, 1 + case / 360 % 3].map(|step| step as i32);
        let mut shape = plain;
        let along = case / 1080;
        let padded = input + 2 * steps[0] as usize;
        if padded <= steps[2] as usize * (filter - 1) {
            continue;
        }
        (shape.input[along], shape.filter[along]) = (input, filter);
        [shape.padding[along], shape.stride[along], shape.dilation[along]] = steps;
        (shape.input[1 - along], shape.filter[1 - along], shape.padding[1 - along]) = (1, 3, 2);
        computed += 1;
        for direction in DIRECTIONS {
            let mut case = Case::new(&shape, F32, direction);
            let expected = case.expected(&shape);
            case.run(1).unwrap();
            assert_eq!(case.result(), expected, "{direction:?}, {shape:?}");
        }
    }
    assert!(computed > 1500, "{computed}");
}

#[test]
fn a_panic_in_a_function_returns_an_error_status() {
    let status = super::functions::answer("test", || panic!("on purpose"));
    assert_eq!(status, Status::InternalError as u32);
    assert!(crate::runtime::last_detail().is_some_and(|text| text.contains("failed: on purpose")));
}

#[test]
fn threads_do_not_change_a_result() {
    let shape = Shape { channels: 16, filters: 24, input: [17, 19], padding: [1, 1], ..PLAIN };
    for direction in DIRECTIONS {
        let mut case = Case::new(&shape, F32, direction);
        assert!(case.job.problem.work() > 300_000.0);
        let expected = case.expected(&shape);
        case.run(4).unwrap();
        assert_eq!(case.result(), expected, "{direction:?}");
    }
}

#[test]
fn half_precision_is_rounded_once() {
    // 2048 + 1 + 1 is 2050; with rounding to f16 after each addition the sum would stay at 2048.
    let shape = Shape { batch: 1, channels: 3, filters: 1, input: [1, 1], filter: [1, 1], ..PLAIN };
    let mut case = Case::new(&shape, F16, Direction::Forward);
    for (index, value) in [2048.0, 1.0, 1.0].into_iter().enumerate() {
        case.buffers[INPUT].set(F16, index, value);
        case.buffers[WEIGHTS].set(F16, index, 1.0);
    }
    case.run(1).unwrap();
    assert_eq!(case.result(), [2050.0]);
}

#[test]
fn only_the_claimed_part_of_a_workspace_is_overwritten() {
    let mut case = Case::new(&PLAIN, F32, Direction::Forward);
    let expected = case.expected(&PLAIN);
    case.run(1).unwrap();
    assert!(case.workspace.words.iter().all(|word| *word == 0), "no workspace was claimed");
    case.job.workspace = case.workspace.address();
    case.job.workspace_size = 60;
    case.run(1).unwrap();
    assert_eq!(case.result(), expected);
    let fill = u32::from_ne_bytes([WORKSPACE_FILL; 4]);
    assert_eq!(case.workspace.words, [vec![fill; 15], vec![0]].concat());
    case.job.workspace_size = 65;
    let error = case.run(1).unwrap_err();
    assert!(
        error.detail.contains("the workspace, 65 bytes") && error.detail.contains("1 bytes past"),
        "{error}"
    );
}

#[test]
fn faults_name_tensors_outside_live_memory() {
    for direction in DIRECTIONS {
        for (tensor, name) in direction.names().into_iter().enumerate() {
            let fault = |spoil: &dyn Fn(&mut Case)| {
                let mut case = Case::new(&PLAIN, F32, direction);
                spoil(&mut case);
                let before = case.result();
                let error = case.run(1).unwrap_err();
                assert_eq!(error.code, ErrorCode::IllegalAddress);
                assert_eq!(case.result(), before, "nothing is written");
                assert!(error.detail.contains(&format!("test: tensor {name} (")), "{error}");
                error.detail
            };
            let text = fault(&|case| case.job.addresses[tensor] = 4096);
            assert!(text.contains("is not live memory") && text.contains("0x1000"), "{text}");
            let text = fault(&|case| case.job.addresses[tensor] += 1);
            assert!(text.contains("not aligned to 4"), "{text}");
            let text = fault(&|case| case.job.addresses[tensor] += 4);
            assert!(text.contains("reaches 4 bytes past the end"), "{text}");
        }
    }
}

#[test]
fn tensors_must_match() {
    let shape = Shape { channels: 4, filters: 6, groups: 2, padding: [1, 1], ..PLAIN };
    let status = |change: &dyn Fn(&mut Convolution, &mut [Tensor; 3])| {
        let mut convolution = shape.convolution();
        let mut tensors = shape.dims().map(|dims| shape.tensor(F32, dims));
        change(&mut convolution, &mut tensors);
        Problem::new(Direction::Forward, convolution, tensors).map_err(|refusal| refusal.status).map(|_| ())
    };
    assert_eq!(status(&|_, _| ()), Ok(()));
    let bad = Err(Status::BadParm);
    assert_eq!(status(&|_, t| t[0].dims[1] = 6), bad, "channels in groups");
    assert_eq!(status(&|_, t| (t[1].dims[0], t[2].dims[1]) = (5, 5)), bad, "filters in groups");
    assert_eq!(status(&|c, _| c.groups = 1), bad, "all channels in one group");
    assert_eq!(status(&|_, t| t[0].dims[0] = 3), bad, "images");
    assert_eq!(status(&|_, t| t[2].dims[3] -= 1), bad, "columns of the output");
    assert_eq!(status(&|c, _| c.stride = [2, 1]), bad, "rows of the output");
    assert_eq!(status(&|c, _| c.dilation = [9, 1]), bad, "larger than the input");
    assert_eq!(status(&|_, t| t[1].kind = shape.tensor(F16, [1; 4]).kind), bad, "types");
    assert_eq!(status(&|_, t| t[2].strides[3] = 0), bad, "results overlap");
    assert_eq!(status(&|_, t| t[2].strides[0] = 1), bad, "results overlap");
    assert_eq!(status(&|_, t| t[0].strides = vec![0; 4]), Ok(()), "an expanded input");
    let five = Tensor::new(F32, &[2, 4, 5, 6, 1], None).unwrap();
    assert_eq!(status(&|_, t| t[0] = five.clone()), bad, "dimensions");
}

#[test]
fn descriptor_contents_are_checked() {
    fn status<T>(outcome: Outcome<T>) -> Status {
        outcome.map_or_else(|refusal| refusal.status, |_| Status::Success)
    }
    let tensor = |kind, dims: &[i32], strides| status(Tensor::new(kind, dims, strides));
    assert_eq!(tensor(6, &[1, 2], None), Status::Success);
    assert_eq!(tensor(F32, &[1, 2, 3, 4, 5], Some(&[0, 1, 1, 1, 1])), Status::Success);
    assert_eq!(tensor(4, &[1, 2], None), Status::BadParm);
    assert_eq!(tensor(10, &[1, 2], None), Status::BadParm);
    for dims in [&[7][..], &[1; 6], &[3, 0], &[3, -1], &[i32::MAX; 3]] {
        assert_eq!(tensor(F32, dims, None), Status::BadParm, "{dims:?}");
    }
    assert_eq!(tensor(F32, &[2, 2], Some(&[2, -1])), Status::BadParm);
    let convolution =
        |mode, padding, stride, dilation| status(Convolution::new(mode, padding, stride, dilation));
    assert_eq!(convolution(0, [0; 2], [1; 2], [1; 2]), Status::Success);
    assert_eq!(convolution(1, [0; 2], [1; 2], [1; 2]), Status::UnsupportedOp);
    assert_eq!(convolution(2, [0; 2], [1; 2], [1; 2]), Status::BadParm);
    assert_eq!(convolution(0, [0, -1], [1; 2], [1; 2]), Status::BadParm);
    assert_eq!(convolution(0, [0; 2], [1, 0], [1; 2]), Status::BadParm);
    assert_eq!(convolution(0, [0; 2], [1; 2], [0, 1]), Status::BadParm);
}

#[test]
fn available_solutions_are_listed_fastest_first() {
    let wide = Shape { channels: 16, filters: 8, padding: [1, 1], ..PLAIN };
    let grouped = Shape { channels: 16, filters: 16, groups: 2, ..PLAIN };
    let strided = Shape { layout: Memory::Gaps, ..wide };
    let ids = |shape: &Shape, kind, direction| {
        let found = solution::available(&shape.problem(kind, direction));
        assert!(found.windows(2).all(|pair| pair[0].time <= pair[1].time));
        found.into_iter().map(|solution| (solution.solution_id, solution.algorithm)).collect::<Vec<_>>()
    };
    let expected = [
        [(137, 5), (91, 0), (11, 1), (85, 1)],
        [(155, 5), (97, 0), (11, 1), (86, 1)],
        [(156, 5), (102, 0), (23, 1), (87, 1)],
    ];
    for (direction, [implicit, gemm, direct, naive]) in DIRECTIONS.into_iter().zip(expected) {
        assert_eq!(ids(&wide, F16, direction), [implicit, gemm, naive]);
        assert_eq!(ids(&wide, BF16, direction), [implicit, gemm, naive]);
        assert_eq!(ids(&wide, F32, direction), [gemm, naive]);
        assert_eq!(ids(&PLAIN, F16, direction), [gemm, naive], "3 channels");
        assert_eq!(ids(&grouped, F16, direction), [direct, naive]);
        assert_eq!(ids(&strided, F16, direction), [naive]);
        assert_eq!(ids(&wide, 6, direction), [], "double");
        let workspace =
            |kind, id| solution::find(&wide.problem(kind, direction), id).map(|s| s.workspace_size);
        // 16 channels, windows of 3 x 2, an output of 5 x 7.
        assert_eq!(workspace(F32, gemm.0), Ok(16 * 6 * 35 * 4));
        assert_eq!(workspace(F16, gemm.0), Ok(16 * 6 * 35 * 2));
        assert_eq!(workspace(F16, implicit.0), Ok(0));
        for id in [0, 84, direct.0, u64::MAX] {
            assert_eq!(workspace(F32, id).map_err(|refusal| refusal.status), Err(Status::BadParm));
        }
    }
}
