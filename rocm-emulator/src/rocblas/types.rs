//! rocBLAS' enumerations, and the combinations of element types that products support.
use crate::c_functions::{Failure, statuses};

statuses! {
    /// `rocblas_status`.
    Success c"rocblas_status_success",
    InvalidHandle c"rocblas_status_invalid_handle",
    NotImplemented c"rocblas_status_not_implemented",
    InvalidPointer c"rocblas_status_invalid_pointer",
    InvalidSize c"rocblas_status_invalid_size",
    MemoryError c"rocblas_status_memory_error",
    InternalError c"rocblas_status_internal_error",
    PerfDegraded c"rocblas_status_perf_degraded",
    SizeQueryMismatch c"rocblas_status_size_query_mismatch",
    SizeIncreased c"rocblas_status_size_increased",
    SizeUnchanged c"rocblas_status_size_unchanged",
    InvalidValue c"rocblas_status_invalid_value",
    Continue c"rocblas_status_continue",
    CheckNumericsFail c"rocblas_status_check_numerics_fail",
    ExcludedFromBuild c"rocblas_status_excluded_from_build",
    ArchMismatch c"rocblas_status_arch_mismatch",
    _ c"<undefined rocblas_status value>"
}

impl Failure for Status {
    fn null_result() -> Self {
        Self::InvalidPointer
    }
}

/// Operation on a matrix. Matrices are real, so the conjugate transpose is the transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    None,
    Transpose,
}

impl Operation {
    /// Converts a `rocblas_operation`.
    pub fn new(code: u32) -> Result<Self, Status> {
        match code {
            111 => Ok(Self::None),
            112 | 113 => Ok(Self::Transpose),
            _ => Err(Status::InvalidValue),
        }
    }
}

/// An element type of products: rocBLAS' types, and hipBLASLt's 8-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    F16,
    F32,
    F64,
    I8,
    I32,
    Bf16,
    /// e4m3 of the Open Compute Project.
    F8,
    /// e4m3 of gfx942, without infinities and negative zero.
    F8Fnuz,
}

impl DataType {
    /// Converts a `rocblas_datatype`. Complex and unsigned types are not implemented.
    pub fn new(code: u32) -> Result<Self, Status> {
        match code {
            150 => Ok(Self::F16),
            151 => Ok(Self::F32),
            152 => Ok(Self::F64),
            160 => Ok(Self::I8),
            162 => Ok(Self::I32),
            168 => Ok(Self::Bf16),
            _ => Err(Status::NotImplemented),
        }
    }

    /// Returns the size of an element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::F8 | Self::F8Fnuz => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 => 8,
        }
    }
}

/// The element types of a product: those of A and B, of C and D, and of alpha and beta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    pub input: DataType,
    pub output: DataType,
    pub scalar: DataType,
}

impl Types {
    /// Checks for the combinations of real types that rocBLAS documents for `gemm_ex`.
    pub fn new(
        a: DataType,
        b: DataType,
        c: DataType,
        d: DataType,
        compute: DataType,
    ) -> Result<Self, Status> {
        use DataType::{Bf16, F16, F32, F64, I8, I32};
        let supported = matches!(
            (a, c, compute),
            (F64, F64, F64)
                | (F32, F32, F32)
                | (F16, F16, F16 | F32)
                | (F16, F32, F32)
                | (Bf16, Bf16 | F32, F32)
                | (I8, I32, I32)
        );
        if a == b && c == d && supported {
            Ok(Self { input: a, output: c, scalar: compute })
        } else {
            Err(Status::NotImplemented)
        }
    }

    /// Returns the types of a product with a single type.
    pub fn uniform(all: DataType) -> Self {
        Self { input: all, output: all, scalar: all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_are_in_the_order_of_their_codes() {
        assert_eq!(status_name(Status::InvalidSize as u32), c"rocblas_status_invalid_size");
        assert_eq!(status_name(Status::ArchMismatch as u32), c"rocblas_status_arch_mismatch");
        assert_eq!(status_name(16), c"<undefined rocblas_status value>");
    }

    #[test]
    fn mixed_types_are_rejected() {
        use DataType::{Bf16, F16, F32, F64, I8, I32};
        assert!(Types::new(F16, F16, F32, F32, F32).is_ok());
        assert!(Types::new(I8, I8, I32, I32, I32).is_ok());
        for (a, b, c, d, compute) in [
            (F16, Bf16, F16, F16, F32),
            (F16, F16, F16, F32, F32),
            (F32, F32, F32, F32, F64),
            (Bf16, Bf16, Bf16, Bf16, Bf16),
            (I8, I8, I8, I8, I32),
            (F64, F64, F32, F32, F64),
        ] {
            assert_eq!(Types::new(a, b, c, d, compute), Err(Status::NotImplemented));
        }
    }
}
