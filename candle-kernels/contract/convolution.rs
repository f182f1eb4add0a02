//! Convolutions, pooling and upsampling.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, INFO, TILED_FLOATS, WIDER_FLOATS, tile_sides};

subject! {
    modules {
        /// Direct convolutions, pooling and upsampling.
        conv,
    }
    constants {
        /// Output elements of a plane that a thread computes together.
        CONV_PLACES_PER_THREAD = 4,
        /// Taps of a row that a thread of conv_rows or conv_groups processes at once.
        CONV_TAPS_AT_ONCE = 3,
        /// Output channels of a group that a thread of conv_groups computes together.
        CONV_CHANNELS_PER_THREAD = 8,
        /// Channels that a thread of fold sums together.
        FOLD_CHANNELS = 4,
    }
}

const SRC: &[Argument] = args![Pointer => src "the input"];
const DST: &[Argument] = args![Pointer => dst "the dense output"];
const PLANE: &[Argument] = args![Usize =>
    places "elements of an output plane", w_out "columns of the output", w_magic "divisor word of w_out"];
const STRIDE: &[Argument] = args![Usize => stride "stride of the window"];
const STEPS: &[Argument] = args![Usize =>
    dilation "distance between taps", padding_y "padding above and below", padding_x "padding left and right"];
const RESIZE: &[Argument] =
    args![F64 => h_step "rows of the input per row of the output", w_step "columns of the input per column"];
const WINDOW: &[Argument] = args![Usize => k_h "rows of the window", k_w "columns of the window"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Convolution",
            "conv",
            "{kind}_{dtype}",
            "Direct convolution (conv), convolution with stride and dilation 1 in packs of a row (conv_rows: places and \
             w_out count packs), the same for groups of several output channels, with their weights in LDS (conv_groups), \
             transposed convolution, or col2im (fold), which sums the products of the taps, given \
             as channels (output channel, tap).",
        )
        .over([names("kind", &["conv", "conv_rows", "conv_groups", "fold"]), dtypes("dtype", WIDER_FLOATS)])
        .over([names("kind", &["conv_transpose"]), dtypes("dtype", ELEMENTS)])
        .takes(&[PLANE, args![Usize =>
            channels "output channels", group_out "output channels of a group; not used by fold"]])
        .takes(&[STRIDE, args![Usize => stride_magic "divisor word of stride"], STEPS])
        .takes(&[args![Usize =>
            period "distance between taps that contribute to an element", back "distance between their inputs",
            dst_stride "elements between images of the output"]])
        .takes(&[INFO, SRC, args![Pointer => kernel "the weights; not used by fold"], DST])
        .with_dynamic_lds(),
        family("Unfold", "conv", "unfold_{carrier}", "im2col: the window of each output element, as the columns of a matrix.")
            .over([dtypes("carrier", &["f16", "u32", "i64"])])
            .takes(&[args![Usize =>
                first "first output element", places "number of output elements",
                pitch "elements between rows of the matrix, whole packs", images "images",
                image_stride "elements between images of the matrix, whole packs"]])
            .takes(&[&PLANE[1..], WINDOW, STRIDE, STEPS, INFO, SRC, DST])
            .in_packs(),
        family("Pool", "conv", "{kind}_pool2d_{dtype}", "Average or maximum pooling.")
            .over([names("kind", &["avg", "max"]), dtypes("dtype", ELEMENTS)])
            .takes(&[PLANE, WINDOW, args![Usize =>
                stride_h "rows between windows", stride_w "columns between windows"]])
            .takes(&[INFO, SRC, DST]),
        family("UpsampleNearest", "conv", "upsample_nearest2d_{carrier}", "Nearest-neighbour upsampling.")
            .over([dtypes("carrier", CARRIERS)])
            .takes(&[PLANE, RESIZE, INFO, SRC, DST])
            .in_packs(),
        family(
            "UpsampleBilinear",
            "conv",
            "upsample_bilinear2d_{dtype}",
            "Bilinear upsampling.",
        )
        .over([dtypes("dtype", ELEMENTS)])
        .takes(&[PLANE, RESIZE, args![Bool => align_corners "true to align the corners of input and output"]])
        .takes(&[INFO, SRC, DST]),
        family(
            "ConvolutionTiles",
            "tiled",
            "{kind}_{side}_{dtype}",
            "Convolution as an implicit GEMM of dense weights with the windows of all images. x of the grid numbers \
             tiles of `side` output channels of a group and of `side` output elements; z numbers groups. For \
             transposed convolutions, y numbers the `stride_y * stride_x` phases of output elements.",
        )
        .over([
            names("kind", &["conv_tiles", "conv_transpose_tiles"]),
            tile_sides(),
            dtypes("dtype", TILED_FLOATS),
        ])
        .takes(&[SRC, args![Pointer => kernel "the weights"], DST, INFO, args![U32 =>
            h_out "rows of the output", w_out "columns of the output",
            stride_y "rows between windows", stride_x "columns between windows",
            dilation_y "rows between taps", dilation_x "columns between taps",
            padding_y "padding above and below", padding_x "padding left and right"]]),
    ]
}
