//! Convolutions, pooling and upsampling.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, INFO, TILED_FLOATS, WIDER_FLOATS, tile_sides};

subject! {
    modules {
        /// Convolutions, pooling, upsampling.
        conv,
    }
    constants {
        /// Places of a plane whose windows a thread goes through together.
        CONV_PLACES = 4,
        /// Channels whose products a thread sums together.
        FOLD_CHANNELS = 4,
    }
}

const SRC: &[Argument] = args![Pointer => src "the input"];
const DST: &[Argument] = args![Pointer => dst "the dense output"];
const PLANE: &[Argument] = args![Usize =>
    places "elements of a plane of the output", w_out "columns of the output", w_magic "of a division by that"];
const STRIDE: &[Argument] = args![Usize => stride "stride of the window"];
const STEPS: &[Argument] = args![Usize =>
    dilation "distance of its taps", padding_y "padding above and below", padding_x "padding left and right"];
const RESIZE: &[Argument] =
    args![F64 => h_step "rows of the input per row of the output", w_step "columns likewise"];
const WINDOW: &[Argument] = args![Usize => k_h "rows of the window", k_w "columns of the window"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Convolution",
            "conv",
            "{kind}_{dtype}",
            "A convolution, each thread walking the windows of its places, or of a pack of a row where steps are 1 \
             (then places and w_out count packs); a transposed one of the taps that reach them; or the sum of what \
             these taps' products are, which stand in the channels (output channel, tap).",
        )
        .over([names("kind", &["conv", "conv_rows", "fold"]), dtypes("dtype", WIDER_FLOATS)])
        .over([names("kind", &["conv_transpose"]), dtypes("dtype", ELEMENTS)])
        .takes(&[PLANE, args![Usize =>
            channels "output channels", group_out "output channels of a group; not used by fold"]])
        .takes(&[STRIDE, args![Usize => stride_magic "of a division by that"], STEPS])
        .takes(&[args![Usize =>
            period "from a tap that reaches a place to the next one", back "how far back the input of that is",
            dst_stride "elements from image to image of the output"]])
        .takes(&[INFO, SRC, args![Pointer => kernel "the weights; not used by fold"], DST]),
        family("Unfold", "conv", "unfold_{carrier}", "The window of each output place, as the columns of a matrix.")
            .over([dtypes("carrier", &["f16", "u32", "i64"])])
            .takes(&[args![Usize =>
                first "first output place", places "output places",
                pitch "elements from row to row of the matrix, whole packs", images "images",
                image_stride "elements from image to image of the matrix, whole packs"]])
            .takes(&[&PLANE[1..], WINDOW, STRIDE, STEPS, INFO, SRC, DST])
            .in_packs(),
        family("Pool", "conv", "{kind}_pool2d_{dtype}", "Pooling of windows.")
            .over([names("kind", &["avg", "max"]), dtypes("dtype", ELEMENTS)])
            .takes(&[PLANE, WINDOW, args![Usize =>
                stride_h "rows from window to window", stride_w "columns from window to window"]])
            .takes(&[INFO, SRC, DST]),
        family("UpsampleNearest", "conv", "upsample_nearest2d_{carrier}", "The nearest element of each place.")
            .over([dtypes("carrier", CARRIERS)])
            .takes(&[PLANE, RESIZE, INFO, SRC, DST])
            .in_packs(),
        family(
            "UpsampleBilinear",
            "conv",
            "upsample_bilinear2d_{dtype}",
            "The four nearest elements of each place, weighted.",
        )
        .over([dtypes("dtype", ELEMENTS)])
        .takes(&[PLANE, RESIZE, args![Bool => align_corners "whether the corners of input and output meet"]])
        .takes(&[INFO, SRC, DST]),
        family(
            "ConvolutionTiles",
            "tiled",
            "{kind}_{side}_{dtype}",
            "A convolution as a product on tiles, of dense weights with the windows of the places of all images. x of \
             the grid counts parts of `side` output channels of a group, then those of `side` places; z groups. The \
             places of a transposed one are those of a phase; y of the grid counts the `stride_y * stride_x` phases.",
        )
        .over([
            names("kind", &["conv_tiles", "conv_transpose_tiles"]),
            tile_sides(),
            dtypes("dtype", TILED_FLOATS),
        ])
        .takes(&[SRC, args![Pointer => kernel "the weights"], DST, INFO, args![U32 =>
            h_out "rows of the output", w_out "columns of the output",
            stride_y "rows from window to window", stride_x "columns from window to window",
            dilation_y "rows from tap to tap", dilation_x "columns from tap to tap",
            padding_y "padding above and below", padding_x "padding left and right"]]),
    ]
}
