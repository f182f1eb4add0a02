//! Rules that fix upstream's operations on every device. The CPU device is the reference for all tests.

use crate::rules::{Rule, after, before, replace};

/// Rules for candle-core. The inserted code calls `candle-core/src/sizes.rs`.
pub const OPERATION_RULES: &[Rule] = &[
    // Fixes layouts that the CPU device misreads. Upstream treats consecutive batches as consecutive rows even if each batch
    // is transposed, so that a linear layer computes wrong results for all but the first batch.
    replace(
        "stack-batches-of-rows",
        CPU,
        1,
        "if b_skip == 0 && a_skip == m * k {",
        "if b_skip == 0 && a_skip == m * lhs_rs {",
    ),
    // Upstream makes a contiguous copy of the kernel but multiplies the original.
    replace("conv1d-of-strided-kernels", CPU, 1, STRIDED_KERNEL, DENSE_KERNEL),
    // For an unchanged size, upstream returns the whole storage, including elements outside of the view.
    replace(
        "bilinear-to-the-same-size",
        CPU,
        1,
        "return Ok(src.to_vec());",
        "return Ok(unary_map(src, layout, |v| v));",
    ),
    // Checks sizes before upstream subtracts and divides them: a window larger than the input is an error.
    before(
        "conv1d-sizes",
        CONV,
        "        let params = ParamsConv1D {\n",
        "        let steps = [padding, stride, dilation];\n        crate::sizes::check_convolution(\"conv1d\", &[(l_in, k_size)], steps, [c_in, c_out], groups)?;\n",
    ),
    before(
        "conv2d-sizes",
        CONV,
        "        let params = ParamsConv2D {\n",
        "        let (sizes, steps) = ([(i_h, k_h), (i_w, k_w)], [padding, stride, dilation]);\n        crate::sizes::check_convolution(\"conv2d\", &sizes, steps, [c_in, c_out], groups)?;\n",
    ),
    before(
        "conv-transpose1d-sizes",
        CONV,
        "        if c_in % groups != 0 {\n",
        "        let steps = [padding, output_padding, stride, dilation];\n        crate::sizes::check_transposed(\"conv_transpose1d\", &[(l_in, k_size)], steps, c_in, groups)?;\n",
    ),
    before(
        "conv-transpose2d-sizes",
        CONV,
        "        let params = ParamsConvTranspose2D {\n",
        "        let (sizes, steps) = ([(i_h, k_h), (i_w, k_w)], [padding, output_padding, stride, dilation]);\n        crate::sizes::check_transposed(\"conv_transpose2d\", &sizes, steps, c_in, 1)?;\n",
    ),
    // Subtracts the padding last, because the intermediate result may be smaller than the padding.
    replace("conv-transpose1d-padding", CONV, 1, PADDING_FIRST, PADDING_LAST),
    replace("pooling-sizes", TENSOR, 2, WINDOW_BEYOND_INPUT, POOLING_SIZES),
    before(
        "nearest1d-of-nothing",
        TENSOR,
        "        let op = BackpropOp::new1(self, |arg| Op::UpsampleNearest1D {",
        "        crate::sizes::check_resizing(\"upsample_nearest1d\", self.dims(), &[target_size])?;\n",
    ),
    before(
        "nearest2d-of-nothing",
        TENSOR,
        "        let op = BackpropOp::new1(self, |arg| Op::UpsampleNearest2D {",
        "        crate::sizes::check_resizing(\"upsample_nearest2d\", self.dims(), &[target_h, target_w])?;\n",
    ),
    before(
        "bilinear-of-nothing",
        TENSOR,
        "        let op = BackpropOp::new1(self, |arg| Op::UpsampleBilinear2D {\n            arg,\n            target_h,\n",
        "        crate::sizes::check_resizing(\"upsample_bilinear2d\", self.dims(), &[target_h, target_w])?;\n",
    ),
    before(
        "bilinear-by-factors-of-nothing",
        TENSOR,
        "        let op = BackpropOp::new1(self, |arg| Op::UpsampleBilinear2D {\n            arg,\n            target_h: height_out,\n",
        "        crate::sizes::check_resizing(\"upsample_bilinear2d\", self.dims(), &[height_out, width_out])?;\n",
    ),
    after(
        "unfold-step",
        TENSOR,
        "        let dim = dim.to_index(self.shape(), \"unfold\")?;\n",
        "        if step == 0 {\n            bail!(\"unfold: the step must be at least 1\")\n        }\n",
    ),
    // The trait's method hides the type's own method and calls itself recursively until the stack overflows.
    replace("f8e4m3-to-f64", "dtype.rs", 1, "|v: f8e4m3| v.to_f64()", "|v: f8e4m3| f8e4m3::to_f64(&v)"),
];

/// Rules for candle-nn.
pub const LAYER_RULES: &[Rule] = &[
    before(
        "pixel-shuffle-factor",
        OPS,
        "    let out_c = c / upscale_factor / upscale_factor;\n",
        "    if upscale_factor == 0 {\n        candle::bail!(\"pixel_shuffle: the factor must be at least 1\")\n    }\n",
    ),
    before(
        "pixel-unshuffle-factor",
        OPS,
        "    let out_c = c * downscale_factor * downscale_factor;\n",
        "    if downscale_factor == 0 {\n        candle::bail!(\"pixel_unshuffle: the factor must be at least 1\")\n    }\n",
    ),
    after(
        "replication-pad-of-nothing",
        OPS,
        "            let (_b_size, _c, h, w) = xs.dims4()?;\n",
        "            if h == 0 || w == 0 {\n                candle::bail!(\"replication_pad2d: there is no edge of {h} x {w} elements to repeat\")\n            }\n",
    ),
];

const CPU: &str = "cpu_backend/mod.rs";
const CONV: &str = "conv.rs";
const OPS: &str = "ops.rs";
const TENSOR: &str = "tensor.rs";

const STRIDED_KERNEL: &str = r"            let kernel_l = Layout::contiguous_with_offset((1, n, k), kernel_l.start_offset())
                .transpose(1, 2)?
                .broadcast_as((b, k, n))?;
            col.matmul(kernel, (b, m, n, k), &col_l, &kernel_l)?
        };
";
const DENSE_KERNEL: &str = r"            let kernel_l = Layout::contiguous((1, n, k))
                .transpose(1, 2)?
                .broadcast_as((b, k, n))?;
            col.matmul(&kernel_c, (b, m, n, k), &col_l, &kernel_l)?
        };
";

const PADDING_FIRST: &str = r"        (self.l_in - 1) * self.stride - 2 * self.padding
            + self.dilation * (self.k_size - 1)
            + self.output_padding
            + 1
";
const PADDING_LAST: &str = r"        (self.l_in - 1) * self.stride
            + self.dilation * (self.k_size - 1)
            + self.output_padding
            + 1
            - 2 * self.padding
";

const WINDOW_BEYOND_INPUT: &str = "        if h < kernel_size.0 || w < kernel_size.1 {\n";
const POOLING_SIZES: &str = "        crate::sizes::check_pooling(self.dims(), kernel_size, stride)?;\n        if h < kernel_size.0 || w < kernel_size.1 {\n";
