//! Matrix products.
//!
//! | file | subject |
//! |---|---|
//! | `product`, `f8` | Candle's product, and one of f8e4m3 |
//! | `calls` | a product as calls of BLAS |
//! | `kernels`, `library` | products by kernels of ours, and by rocBLAS |
//! | `operand` | the sides of a product, and where it is written |
//! | `precision` | whether sums of f16, bf16 and f32 may be less precise |
mod calls;
mod f8;
mod kernels;
mod library;
mod operand;
mod precision;
mod product;

pub use f8::matmul_f8;
pub(crate) use library::widening_product;
pub(crate) use operand::Output;
pub use precision::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16, set_gemm_reduced_precision_f32,
};
pub(crate) use product::{matmul, multiplies, product};
