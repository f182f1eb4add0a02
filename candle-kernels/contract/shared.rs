//! Lists of dtypes, arguments and constants that several subjects have.

use super::schema::{Argument, Axis, Family, names};

subject! {
    modules {}
    constants {
        /// Words of a by-value layout: dims, then the strides of each operand.
        LAYOUT_WORDS = 32,
        /// Threads of a workgroup, where nothing else is said.
        BLOCK = 256,
        /// The most bytes that one access of a lane moves.
        PACK_BYTES = 16,
    }
}

fn families() -> Vec<Family> {
    Vec::new()
}

/// Every dtype that computes, named as `DType::as_str` names it.
pub const ELEMENTS: &[&str] = &["u8", "u32", "i16", "i32", "i64", "bf16", "f16", "f32", "f64", "f8e4m3"];
/// All floats.
pub const FLOATS: &[&str] = &["bf16", "f16", "f32", "f64", "f8e4m3"];
/// The floats of upstream's fused layers and products.
pub const WIDER_FLOATS: &[&str] = &["bf16", "f16", "f32", "f64"];
/// The floats that matrix units multiply, or lanes in their place.
pub const TILED_FLOATS: &[&str] = &["bf16", "f16", "f32"];
/// All integers.
pub const INTEGERS: &[&str] = &["u8", "u32", "i16", "i32", "i64"];
/// Elements that are only moved: one dtype of each size stands for all of it.
pub const CARRIERS: &[&str] = &["u8", "f16", "u32", "i64"];
/// Units of bytes that are only moved.
pub const UNITS: &[&str] = &["b1", "b2", "b4", "b8", "b16"];

/// The first arguments of a kernel that follows a layout.
pub const STRIDED: &[Argument] = args![
    Usize => numel "elements in all", num_dims "dims in `info`; 0 if everything is contiguous";
    Layout => info "dims, then the strides of each operand"];
/// The first argument of a kernel that counts elements.
pub const NUMEL: &[Argument] = &[STRIDED[0]];
/// The number of dims of a layout that follows.
pub const NUM_DIMS: &[Argument] = &[STRIDED[1]];
/// A layout.
pub const INFO: &[Argument] = &[STRIDED[2]];
/// The input.
pub const INP: &[Argument] = args![Pointer => inp "the input"];
/// The output.
pub const OUT: &[Argument] = args![Pointer => out "the dense output"];
/// Both operands.
pub const LHS_RHS: &[Argument] = args![Pointer => lhs "left operand", rhs "right operand"];

/// Rows and columns of a workgroup's part of a product on tiles.
pub fn tile_sides() -> Axis {
    Axis { shared: Some("TileSide"), ..names("side", &["64", "128"]) }
}
