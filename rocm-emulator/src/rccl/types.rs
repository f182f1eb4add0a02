//! NCCL's structures and enumerations (nccl.h), and the error type.
pub use crate::c_functions::reject;
use crate::c_functions::{self, Failure, statuses};
use std::ffi::c_int;

statuses! {
    /// `ncclResult_t`.
    Success c"no error",
    UnhandledCudaError c"unhandled cuda error",
    SystemError c"unhandled system error",
    InternalError c"internal error",
    InvalidArgument c"invalid argument",
    InvalidUsage c"invalid usage",
    RemoteError c"remote process exited or there was a network error",
    InProgress c"operation in progress",
    _ c"unknown result code"
}

pub type StatusError = c_functions::StatusError<Status>;
pub type Result<T> = std::result::Result<T, StatusError>;

impl Failure for StatusError {
    fn null_result() -> Self {
        Self { status: Status::InvalidArgument, reason: "the pointer for the result is null".into() }
    }
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// The fields of `ncclConfig_t` in version 2.14.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Size of the caller's structure in bytes.
    pub size: usize,
    /// [`MAGIC`].
    pub magic: u32,
    /// Version of the caller's header.
    pub version: u32,
    /// 0 for a non-blocking communicator.
    pub blocking: c_int,
}

/// Value of [`Config::magic`].
pub const MAGIC: u32 = 0xcafe_beef;

/// Defines an enumeration of the library with the names of its values in errors.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $number:literal $name:literal)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($variant = $number,)*
        }

        impl $type {
            /// Converts the number of a value; `None` if it is unknown or not supported.
            pub fn new(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name of the value in errors.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
named! {
    /// `ncclDataType_t`.
    DataType {
        U8 = 1 "u8"
        I32 = 2 "i32"
        U32 = 3 "u32"
        I64 = 4 "i64"
        F16 = 6 "f16"
        F32 = 7 "f32"
        F64 = 8 "f64"
        Bf16 = 9 "bf16"
    }
}
named! {
    /// `ncclRedOp_t`.
    Op {
        Sum = 0 "sum"
        Max = 2 "max"
    }
}
named! {
    /// The operations.
    Kind {
        AllReduce = 1 "all-reduce"
        AllGather = 2 "all-gather"
        ReduceScatter = 3 "reduce-scatter"
        Broadcast = 4 "broadcast"
        Send = 5 "send"
        Receive = 6 "receive"
    }
}

impl DataType {
    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}
