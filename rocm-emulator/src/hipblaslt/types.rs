//! hipBLASLt's enumerations (hipblaslt.h, hipblas-common.h, library_types.h), and the error type.
pub use crate::c_functions::reject;
use crate::c_functions::{self, Failure};
use crate::rocblas::problem::{Operand, Place};
use crate::rocblas::types::{DataType, Operation};

/// `hipblasStatus_t`.
#[allow(missing_docs, reason = "hipBLAS' names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Success = 0,
    NotInitialized = 1,
    AllocFailed = 2,
    InvalidValue = 3,
    MappingError = 4,
    ExecutionFailed = 5,
    InternalError = 6,
    NotSupported = 7,
    ArchMismatch = 8,
    HandleIsNullptr = 9,
    InvalidEnum = 10,
    Unknown = 11,
}

pub type StatusError = c_functions::StatusError<Status>;
pub type Result<T> = std::result::Result<T, StatusError>;

impl Failure for StatusError {
    fn null_result() -> Self {
        Self { status: Status::InvalidValue, reason: "the pointer for the result is null".into() }
    }
}

/// `HIPBLAS_COMPUTE_32F`.
pub const COMPUTE_F32: u32 = 2;
/// `HIPBLASLT_EPILOGUE_DEFAULT`.
pub const EPILOGUE_DEFAULT: u32 = 1;
/// `HIPBLASLT_EPILOGUE_BIAS`.
pub const EPILOGUE_BIAS: u32 = 4;
/// `HIPBLASLT_EPILOGUE_GELU`.
pub const EPILOGUE_GELU: u32 = 32;
/// `HIPBLASLT_EPILOGUE_GELU_BIAS`.
pub const EPILOGUE_GELU_BIAS: u32 = 36;

/// Converts a `hipDataType`; `None` if products do not support it.
pub fn data_type(code: u32) -> Option<DataType> {
    Some(match code {
        0 => DataType::F32,
        2 => DataType::F16,
        14 => DataType::Bf16,
        28 => DataType::F8,
        1000 => DataType::F8Fnuz,
        _ => return None,
    })
}

/// Converts a `hipblasOperation_t`, which rocBLAS numbers alike.
pub fn operation(code: u32) -> Result<Operation> {
    Operation::new(code)
        .or_else(|_| reject(Status::InvalidValue, format!("unknown hipblasOperation_t {code}")))
}

/// Returns a matrix of a strided batch.
pub fn strided(address: usize, ld: i32, stride: i64) -> Operand {
    Operand { place: Place::Strided { base: address, stride }, ld }
}
