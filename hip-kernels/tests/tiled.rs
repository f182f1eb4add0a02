//! Compares tiled products and convolutions with sums in f64, on the software GPU of every architecture that was built.
mod software_gpu;

use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{
    BLOCK, ConvolutionTiles, ConvolutionTilesKind, KernelLayout, LAYOUT_WORDS, TileSide, TiledProduct,
};
use software_gpu::numbers::{Dtype, Numbers, launch, noise, on_each_device};
use software_gpu::products::{self, Strides};

const THREADS: [u32; 3] = [BLOCK as u32, 1, 1];

fn length(side: TileSide) -> usize {
    match side {
        TileSide::S64 => 64,
        TileSide::S128 => 128,
    }
}

/// Returns the number of tiles of a result of `rows` x `columns`.
fn parts(side: TileSide, rows: usize, columns: usize) -> u32 {
    (rows.div_ceil(length(side)) * columns.div_ceil(length(side))) as u32
}

/// Returns the maximum error: one rounding of the result, and f32 sums of `terms` terms.
fn bound<T: Dtype>(wanted: f64, terms: usize) -> f64 {
    T::EPSILON * wanted.abs() + f64::from(f32::EPSILON) * terms as f64 + T::EPSILON / 64.0
}

/// Memory layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Contiguous along k, lines packed.
    Along,
    /// Contiguous along k, with a line stride that makes packs unaligned.
    AlongApart,
    /// Contiguous across lines.
    Across,
    /// One line, broadcast.
    Same,
}

impl Order {
    /// Returns the stride between lines, the stride along k, and the total number of elements.
    fn strides(self, lines: usize, k: usize) -> [usize; 3] {
        match self {
            Self::Along => [k, 1, lines * k],
            Self::AlongApart => [k + 3, 1, lines * (k + 3)],
            Self::Across => [1, lines + 1, (lines + 1) * k],
            Self::Same => [0, 1, k],
        }
    }
}

fn check_product<T: Dtype>(arch: &str, side: TileSide, sizes: [usize; 4], orders: [Order; 2], z: u32) {
    let [batches, m, n, k] = sizes;
    let ([a_row, a_column, a_batch], [b_column, b_row, b_len]) =
        (orders[0].strides(m, k), orders[1].strides(n, k));
    let grid = [parts(side, m, n), 1, z];
    products::check::<T>(
        sizes,
        &Strides { a: [a_batch, a_row, a_column], b: [b_row, b_column] },
        [(batches * a_batch).max(1), b_len.max(1), 5],
        |of| launch(TiledProduct::kernel(side, T::ELEMENT), &of, arch, grid, THREADS),
        |wanted| bound::<T>(wanted, k),
        &format!("{side:?} {orders:?} on {arch}"),
    );
}

fn check_products<T: Dtype>(arch: &str) {
    use Order::{Across, Along, AlongApart, Same};
    for side in TileSide::ALL {
        check_product::<T>(arch, side, [1, 70, 130, 64], [Along, Along], 1);
        check_product::<T>(arch, side, [1, 129, 67, 77], [AlongApart, Across], 1);
        check_product::<T>(arch, side, [1, 33, 65, 45], [Across, AlongApart], 1);
        // Fewer workgroups than batches, so each computes several.
        check_product::<T>(arch, side, [3, 9, 17, 40], [Across, Same], 2);
        // Fewer elements along k than a pack, and none: an empty sum is 0.
        check_product::<T>(arch, side, [2, 1, 3, 1], [Along, Along], 2);
        check_product::<T>(arch, side, [1, 5, 4, 0], [Along, Across], 1);
    }
}

#[test]
fn products_of_any_strides() {
    on_each_device(|arch| {
        check_products::<f16>(arch);
        check_products::<bf16>(arch);
        check_products::<f32>(arch);
        check_products::<F8E4M3>(arch);
    });
}

/// Parameters of a convolution along one dimension.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    taps: usize,
    stride: usize,
    dilation: usize,
    padding: usize,
    output_padding: usize,
}

const fn axis(size: usize, taps: usize, stride: usize, dilation: usize, padding: usize) -> Axis {
    Axis { size, taps, stride, dilation, padding, output_padding: 0 }
}

impl Axis {
    fn out(self, transposed: bool) -> usize {
        let span = (self.taps - 1) * self.dilation + 1;
        match transposed {
            true => (self.size - 1) * self.stride + span + self.output_padding - 2 * self.padding,
            false => (self.size + 2 * self.padding - span) / self.stride + 1,
        }
    }

    /// Returns the input that a tap reads for an output place, if it exists.
    fn source(self, transposed: bool, place: usize, tap: usize) -> Option<usize> {
        let [place, tap, stride, dilation, padding] =
            [place, tap, self.stride, self.dilation, self.padding].map(|x| x as i64);
        let source = match transposed {
            true => {
                let shifted = place + padding - tap * dilation;
                (shifted % stride == 0).then_some(shifted / stride)?
            }
            false => place * stride - padding + tap * dilation,
        };
        usize::try_from(source).ok().filter(|&source| source < self.size)
    }
}

/// `channels` are the input and output channels of a group.
fn check_conv<T: Dtype>(
    arch: &str,
    side: TileSide,
    kind: ConvolutionTilesKind,
    [images, groups, c_in, c_out]: [usize; 4],
    [h, w]: [Axis; 2],
) {
    let transposed = kind == ConvolutionTilesKind::ConvTransposeTiles;
    let (h_out, w_out) = (h.out(transposed), w.out(transposed));
    // The input's column stride is larger than its row stride, and all strides have gaps.
    let strides =
        [groups * c_in * (h.size + 1) * (w.size + 1) + 3, (h.size + 1) * (w.size + 1), 1, h.size + 1];
    let (s_image, s_channel, s_x) = (strides[0], strides[1], strides[3]);
    let dims = match transposed {
        true => [c_in, c_out, h.taps, w.taps],
        false => [c_out, c_in, h.taps, w.taps],
    };
    let taps = h.taps * w.taps;
    let weight_strides = [dims[1] * taps, taps, w.taps, 1];
    let src = Numbers::<T>::new(&noise(images * s_image, 3));
    let kernel = Numbers::<T>::new(&noise(groups * c_in * c_out * taps, 4));
    let dst = Numbers::<T>::new(&vec![7.0; images * groups * c_out * h_out * w_out]);
    let mut words = [0; LAYOUT_WORDS];
    let lists = [[images, c_in, h.size, w.size], strides, dims, weight_strides];
    words.iter_mut().zip(lists.into_iter().flatten()).for_each(|(word, value)| *word = value);
    let arguments = ConvolutionTiles {
        src: src.pointer(),
        kernel: kernel.pointer(),
        dst: dst.pointer(),
        info: &KernelLayout(words),
        h_out: h_out as u32,
        w_out: w_out as u32,
        stride_y: h.stride as u32,
        stride_x: w.stride as u32,
        dilation_y: h.dilation as u32,
        dilation_x: w.dilation as u32,
        padding_y: h.padding as u32,
        padding_x: w.padding as u32,
    };
    let (places, phases) = match transposed {
        true => (h_out.div_ceil(h.stride) * w_out.div_ceil(w.stride), h.stride * w.stride),
        false => (h_out * w_out, 1),
    };
    let grid = [parts(side, c_out, images * places), phases as u32, groups as u32];
    launch(ConvolutionTiles::kernel(kind, side, T::ELEMENT), &arguments, arch, grid, THREADS);
    let (inputs, weights, got) = (src.read(), kernel.read(), dst.read());
    for (index, &value) in got.iter().enumerate() {
        let (x, y) = (index % w_out, index / w_out % h_out);
        let channel = index / (h_out * w_out) % (groups * c_out);
        let (image, group, o) = (index / (h_out * w_out * groups * c_out), channel / c_out, channel % c_out);
        let mut wanted = 0.0;
        for tap in 0..taps {
            let sources = (h.source(transposed, y, tap / w.taps), w.source(transposed, x, tap % w.taps));
            let (Some(from_y), Some(from_x)) = sources else { continue };
            for c in 0..c_in {
                let line = match transposed {
                    true => (group * c_in + c) * c_out + o,
                    false => channel * c_in + c,
                };
                let from = image * s_image + (group * c_in + c) * s_channel + from_y + from_x * s_x;
                wanted += inputs[from] * weights[line * taps + tap];
            }
        }
        assert!(
            (value - wanted).abs() <= bound::<T>(wanted, c_in * taps),
            "{:?} {kind:?} {side:?} on {arch}, {h:?} {w:?}, {image} {channel} {y} {x}: {value}, wanted {wanted}",
            T::ELEMENT
        );
    }
}

fn check_convs<T: Dtype>(arch: &str) {
    for side in TileSide::ALL {
        let check = |sizes, axes| check_conv::<T>(arch, side, ConvolutionTilesKind::ConvTiles, sizes, axes);
        // Runs of places that are whole packs, with several workgroups.
        check([2, 1, 16, 70], [axis(8, 3, 1, 1, 1), axis(16, 3, 1, 1, 1)]);
        // Planes smaller than a tile that end within a run of places.
        check([9, 1, 5, 65], [axis(4, 2, 1, 1, 0), axis(5, 3, 2, 1, 1)]);
        check([5, 1, 40, 3], [axis(1, 1, 1, 1, 0), axis(1, 1, 1, 1, 0)]);
        check([1, 2, 3, 9], [axis(13, 3, 3, 2, 2), axis(11, 4, 2, 3, 5)]);
        // One dimension, in groups.
        check([2, 3, 6, 5], [axis(1, 1, 1, 1, 0), axis(40, 7, 1, 2, 3)]);
        // Fewer columns than a pack.
        check([1, 1, 1, 2], [axis(3, 1, 1, 1, 0), axis(7, 2, 1, 1, 0)]);
    }
}

fn check_transposed_convs<T: Dtype>(arch: &str) {
    for side in TileSide::ALL {
        let check =
            |sizes, axes| check_conv::<T>(arch, side, ConvolutionTilesKind::ConvTransposeTiles, sizes, axes);
        check([2, 1, 16, 70], [axis(6, 4, 2, 1, 1), axis(5, 4, 2, 1, 1)]);
        // Taps that do not contribute to every place, and more taps.
        check([1, 1, 7, 3], [axis(4, 2, 3, 1, 0), axis(5, 1, 2, 1, 0)]);
        check([1, 1, 9, 66], [axis(7, 5, 1, 1, 2), axis(9, 3, 1, 2, 1)]);
        // Strides and dilations with and without a common divisor.
        check([3, 1, 4, 5], [axis(4, 3, 2, 2, 1), axis(3, 5, 3, 2, 2)]);
        check([1, 1, 6, 2], [axis(1, 1, 1, 1, 0), Axis { output_padding: 1, ..axis(20, 7, 3, 1, 2) }]);
        check([1, 2, 3, 4], [axis(3, 4, 4, 6, 0), axis(2, 3, 2, 1, 1)]);
    }
}

#[test]
fn convolutions_without_an_unfolded_input() {
    on_each_device(|arch| {
        check_convs::<f16>(arch);
        check_convs::<bf16>(arch);
        check_convs::<f32>(arch);
    });
}

#[test]
fn transposed_convolutions_by_phases() {
    on_each_device(|arch| {
        check_transposed_convs::<f16>(arch);
        check_transposed_convs::<bf16>(arch);
        check_transposed_convs::<f32>(arch);
    });
}
