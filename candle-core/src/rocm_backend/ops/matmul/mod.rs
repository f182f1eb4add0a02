//! Matrix products.
//!
//! | file | subject |
//! |---|---|
//! | `product`, `f8` | Candle's product, and a product of f8e4m3 |
//! | `calls` | decomposition of a batched product into BLAS calls |
//! | `kernels`, `library` | products by built-in kernels, and by rocBLAS |
//! | `operand` | operands and output of a product |
//! | `precision` | switches for reduced precision of f16, bf16 and f32 |
mod calls;
mod f8;
mod kernels;
mod library;
mod operand;
mod precision;
mod product;

pub use f8::matmul_f8;
pub(crate) use library::library_product;
pub(crate) use operand::Output;
pub use precision::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16, set_gemm_reduced_precision_f32,
};
pub(crate) use product::{has_matmul, matmul, product};
