//! The elementwise template on the software GPU: aligned and unaligned packs, and grids smaller than the work.
mod software_gpu;

use std::ffi::c_void;

use hip_kernels::contract::{ADD, LAYOUT_WORDS, dim_word};
use hip_kernels::{Module as KernelModule, code_object};
use software_gpu::{ARCH, Buffer, Module, argument};

fn load(module: KernelModule) -> Module {
    Module::load(&code_object(module, ARCH).unwrap().bytes)
}

/// Returns elements equal to their index, truncated to 16 bits.
fn numbers(count: usize) -> Vec<u16> {
    (0..count).map(|i| i as u16).collect()
}

/// Returns a layout of dims and the strides of each operand.
fn layout(dims: &[usize], strides: &[&[usize]]) -> [usize; LAYOUT_WORDS] {
    let words = dims.iter().map(|&size| dim_word(size)).chain(strides.concat());
    let mut layout = [0; LAYOUT_WORDS];
    layout.iter_mut().zip(words).for_each(|(word, value)| *word = value);
    layout
}

/// Returns the offsets of a layout's elements, in order.
fn places(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    (0..dims.iter().product())
        .map(|mut i| {
            let digits = dims.iter().zip(strides).rev().map(|(size, stride)| {
                let digit = i % size;
                i /= size;
                digit * stride
            });
            digits.sum()
        })
        .collect()
}

/// Returns the address `elements` elements after the start of a buffer.
fn beyond(buffer: &Buffer<u16>, elements: usize) -> *mut c_void {
    buffer.address().wrapping_byte_add(2 * elements)
}

/// Sizes around those of packs and workgroups, with grids from one workgroup to more than needed.
fn sizes() -> impl Iterator<Item = (usize, u32)> {
    [1, 7, 8, 9, 255, 2047, 2048, 2056, 8192, 9001, 20_000]
        .into_iter()
        .flat_map(|size| [1, 2, 3, 90].map(|grid| (size, grid)))
}

#[test]
fn dense_elements_are_copied_at_any_alignment() {
    let (unary, fill) = (load(KernelModule::Unary), load(KernelModule::Fill));
    for (size, grid) in sizes() {
        for (from, to) in [(0, 0), (8, 0), (1, 0), (0, 4), (3, 5)] {
            let source = Buffer::new(&numbers(size + 16));
            let target = Buffer::<u16>::zeroed(size + 16);
            let (inp, out) = (beyond(&source, from), beyond(&target, to));
            let info = [0usize; LAYOUT_WORDS];
            let dense = [argument(&size), argument(&0usize), argument(&info)];
            let run = |module: &Module, kernel: &str, more: &[*mut c_void]| {
                target.write(&vec![0xffff; size + 16]);
                let mut arguments = [&dense, more].concat();
                module.launch(kernel, [grid, 1, 1], [256, 1, 1], &mut arguments);
                let got = target.read();
                assert!(got[..to].iter().chain(&got[to + size..]).all(|&x| x == 0xffff), "{kernel} {size}");
                got[to..to + size].to_vec()
            };
            let wanted = numbers(size + 16)[from..from + size].to_vec();
            let copied = [argument(&inp), argument(&out)];
            assert_eq!(run(&unary, "ucopy_f16", &copied), wanted, "{size} {grid} {from} {to}");
            // A costly function, which processes packs one by one: sqrt(x) of small bit patterns is not 0.
            let roots = run(&unary, "usqrt_bf16", &copied);
            let root = |x: u16| {
                let root = f32::from_bits(u32::from(x) << 16).sqrt();
                half::bf16::from_f32(root).to_bits()
            };
            assert_eq!(
                roots,
                wanted.iter().map(|&x| root(x)).collect::<Vec<_>>(),
                "{size} {grid} {from} {to}"
            );
            let filled = run(&fill, "const_set_f16", &[argument(&7u16), argument(&out)]);
            assert_eq!(filled, vec![7; size], "{size} {grid} {to}");
        }
    }
}

#[test]
fn aligned_rows_are_read_in_packs() {
    let binary = load(KernelModule::Binary);
    // Dims, strides of both operands, and offset of the left operand.
    type Case<'a> = (&'a [usize], &'a [usize], &'a [usize], usize);
    let cases: [Case; 9] = [
        // A broadcast row, a broadcast column, and a scalar.
        (&[40, 64], &[64, 1], &[0, 1], 0),
        (&[40, 64], &[64, 1], &[1, 0], 0),
        (&[2560], &[1], &[0], 0),
        // Part of a wider matrix, at aligned and unaligned addresses.
        (&[40, 64], &[80, 1], &[64, 1], 8),
        (&[40, 64], &[80, 1], &[64, 1], 3),
        (&[40, 64], &[83, 1], &[64, 1], 0),
        // Rows that are not whole packs, transposed rows, and many dims.
        (&[40, 63], &[64, 1], &[0, 1], 0),
        (&[40, 64], &[1, 40], &[64, 1], 0),
        (&[3, 5, 2, 7, 8], &[560, 8, 40, 80, 1], &[0, 8, 0, 40, 1], 0),
    ];
    for (dims, left, right, begin) in cases {
        let count: usize = dims.iter().product();
        let (l, r) = (places(dims, left), places(dims, right));
        let source = numbers(begin + l.iter().max().unwrap() + 1);
        let sides = [Buffer::new(&source), Buffer::new(&numbers(r.iter().max().unwrap() + 1))];
        let out = Buffer::<u16>::zeroed(count);
        let (lhs, rhs, to) = (beyond(&sides[0], begin), sides[1].address(), out.address());
        let info = layout(dims, &[left, right]);
        for grid in [1, 2, 50] {
            out.write(&vec![0; count]);
            let num_dims = dims.len();
            let mut arguments = [
                argument(&count),
                argument(&num_dims),
                argument(&info),
                argument(&ADD),
                argument(&lhs),
                argument(&rhs),
                argument(&to),
            ];
            binary.launch("arithmetic_i16", [grid, 1, 1], [256, 1, 1], &mut arguments);
            let wanted: Vec<u16> = l.iter().zip(&r).map(|(l, r)| (begin + l + r) as u16).collect();
            assert_eq!(out.read(), wanted, "{dims:?} {left:?} {right:?} {begin} {grid}");
        }
    }
}
