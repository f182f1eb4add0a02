//! hipBLASLt's enumerations (hipblaslt.h, hipblas-common.h, library_types.h), and what goes wrong with words.
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

/// A status with its reason.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: Status,
    pub reason: String,
}

pub type Result<T> = std::result::Result<T, Refusal>;

/// A failing result.
pub fn refuse<T>(status: Status, reason: impl Into<String>) -> Result<T> {
    Err(Refusal { status, reason: reason.into() })
}

/// `HIPBLAS_COMPUTE_32F`.
pub const COMPUTE_F32: u32 = 2;
/// `HIPBLASLT_EPILOGUE_DEFAULT`.
pub const EPILOGUE_DEFAULT: u32 = 1;
/// `HIPBLASLT_EPILOGUE_BIAS`.
pub const EPILOGUE_BIAS: u32 = 4;

/// From `hipDataType`, as far as products here may have it.
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

/// From `hipblasOperation_t`, which has rocBLAS' numbers.
pub fn operation(code: u32) -> Result<Operation> {
    Operation::new(code).or_else(|_| refuse(Status::InvalidValue, format!("{code} is no hipblasOperation_t")))
}

/// A matrix whose batch lies a fixed number of elements apart.
pub fn strided(address: usize, ld: i32, stride: i64) -> Operand {
    Operand { place: Place::Strided { base: address, stride }, ld }
}
