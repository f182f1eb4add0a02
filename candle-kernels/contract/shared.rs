//! Lists of dtypes, arguments and constants used by several subjects.

use super::schema::{Argument, Axis, Family, names};

subject! {
    modules {}
    constants {
        /// Maximum number of words of a by-value layout: dims, then the strides of each operand.
        LAYOUT_WORDS = 32,
        /// Default number of threads per workgroup.
        BLOCK = 256,
        /// Maximum number of bytes that one access of a lane moves.
        PACK_BYTES = 16,
    }
}

fn families() -> Vec<Family> {
    Vec::new()
}

/// All dtypes with arithmetic, named as by `DType::as_str`.
pub const ELEMENTS: &[&str] = &["u8", "u32", "i16", "i32", "i64", "bf16", "f16", "f32", "f64", "f8e4m3"];
/// All float dtypes.
pub const FLOATS: &[&str] = &["bf16", "f16", "f32", "f64", "f8e4m3"];
/// Float dtypes of upstream's fused layers and matrix products.
pub const WIDER_FLOATS: &[&str] = &["bf16", "f16", "f32", "f64"];
/// Float dtypes of tiled products.
pub const TILED_FLOATS: &[&str] = &["bf16", "f16", "f32"];
/// All integer dtypes.
pub const INTEGERS: &[&str] = &["u8", "u32", "i16", "i32", "i64"];
/// One dtype of each element size, for kernels that only move elements.
pub const CARRIERS: &[&str] = &["u8", "f16", "u32", "i64"];
/// Units of 1 to 16 bytes, for kernels that only move bytes.
pub const UNITS: &[&str] = &["b1", "b2", "b4", "b8", "b16"];

/// First arguments of a kernel with strided operands.
pub const STRIDED: &[Argument] = args![
    Usize => numel "number of elements", num_dims "number of dims in `info`; 0 if everything is contiguous";
    Layout => info "dims, then the strides of each operand"];
/// The number of elements.
pub const NUMEL: &[Argument] = &[STRIDED[0]];
/// The number of dims of the following layout.
pub const NUM_DIMS: &[Argument] = &[STRIDED[1]];
/// A layout.
pub const INFO: &[Argument] = &[STRIDED[2]];
/// The input.
pub const INP: &[Argument] = args![Pointer => inp "the input"];
/// The output.
pub const OUT: &[Argument] = args![Pointer => out "the dense output"];
/// Both operands.
pub const LHS_RHS: &[Argument] = args![Pointer => lhs "left operand", rhs "right operand"];

/// Returns the axis of the number of rows and columns of a workgroup's tile.
pub fn tile_sides() -> Axis {
    Axis { shared: Some("TileSide"), ..names("side", &["64", "128"]) }
}
