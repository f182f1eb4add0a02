//! Errors of a ROCm device, and their remedies.
use crate::{DType, Layout};
use rocm_rs::{hip, rocblas};

/// An error of the ROCm backend. Reaches the caller as [`crate::Error::Rocm`].
///
/// A failed call leaves the device usable: whatever state HIP keeps about it is cleared.
#[derive(Debug, thiserror::Error)]
pub enum RocmError {
    /// No usable driver: ROCm is missing, there is no GPU, or `CANDLE_ROCM_DRIVER` asks for what is not there.
    #[error(transparent)]
    Driver(#[from] rocm_loader::LoadError),

    /// This binary holds no code object that fits the GPU, or it is damaged.
    #[error(transparent)]
    CodeObject(#[from] hip_kernels::KernelError),

    /// A HIP call failed, or a kernel launched before it did.
    #[error("{call} failed on {device}: {error}{notes}")]
    Hip {
        /// The call, with the sizes it was given.
        call: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// HIP's own.
        error: hip::Error,
        /// The driver's own words and advice, each after a semicolon; may be empty.
        notes: String,
    },

    /// A rocBLAS call failed.
    #[error("{call} failed on {device}: {error}{notes}")]
    Rocblas {
        /// The call, with the sizes it was given.
        call: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// rocBLAS' own.
        error: rocblas::Error,
        /// See [`Self::Hip`].
        notes: String,
    },

    /// The GPU has not that much memory, even with all that is kept for reuse given back.
    #[error(
        "out of device memory on {device}: {requested} bytes requested, {free} of {total} bytes free; \
         drop tensors that are no longer needed, or use a smaller batch, a shorter context or a smaller dtype"
    )]
    OutOfMemory {
        /// Bytes.
        requested: usize,
        /// Bytes that HIP reports as free.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// The request would leave less than the reserve.
    #[error(
        "{requested} bytes requested on {device}, where {free} of {total} bytes are free and {reserve} bytes are kept \
         free for the desktop, the driver and libraries; lower that with CANDLE_ROCM_MEMORY_RESERVE=bytes or \
         RocmDevice::set_memory_reserve, drop tensors that are no longer needed, or use a smaller batch"
    )]
    BeyondReserve {
        /// Bytes.
        requested: usize,
        /// Bytes that stay free.
        reserve: usize,
        /// Bytes that HIP reports as free.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// The deadline for waiting has passed.
    #[error(
        "{device} has not finished after {seconds:.3} s, the deadline that was set ({purpose}); last launched: \
         {launches}; wait longer (CANDLE_ROCM_DEADLINE=seconds or RocmDevice::set_deadline), or take the GPU to be \
         stuck: its memory stays taken until the process ends"
    )]
    Overdue {
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Seconds that were waited.
        seconds: f64,
        /// Purpose of the wait.
        purpose: &'static str,
        /// The last kernels, separated by commas.
        launches: String,
    },

    /// The GPU computes, but wrongly.
    #[error("{device} computes wrongly: {computation}; do not trust its results (HSA_OVERRIDE_GFX_VERSION is a cause)")]
    WrongResult {
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// The computation, its result, and the expected result.
        computation: String,
    },

    /// A variable or a value that is not understood.
    #[error("{0}")]
    Setting(String),

    /// There is no GPU of this number.
    #[error("rocm:{ordinal} does not exist: {driver} has {count} device(s), numbered from 0")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// Number that there is.
        count: usize,
        /// Driver that was asked.
        driver: String,
    },

    /// A kernel met an index outside its tensor. It read or wrote nothing there.
    #[error("{op}: index {index} is out of range for a dimension of size {bound} (on {device})")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index.
        index: i64,
        /// The size of the dimension.
        bound: u64,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// A code object of this binary lacks a kernel of the contract.
    #[error("no kernel {kernel} in module {module} (on {device}): this binary's code objects are damaged, build it anew")]
    MissingKernel {
        /// The module.
        module: String,
        /// The kernel.
        kernel: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// The caller's own code object, or a kernel that it has not.
    #[error("custom module {module} on {device}: {reason}")]
    CustomModule {
        /// The name it was given.
        module: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Cause.
        reason: String,
    },

    /// The arguments of a launch are not those of the caller's kernel. Nothing was launched.
    #[error("kernel {kernel} on {device}: {message}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Which argument, what it takes and what was given.
        message: String,
    },

    /// More elements than one launch counts, where they cannot be cut.
    #[error("{op}: {elements} elements are more than a kernel can index ({limit}); split the tensor")]
    TooManyElements {
        /// The operation.
        op: &'static str,
        /// Number that there is.
        elements: usize,
        /// Maximum number.
        limit: usize,
    },

    /// A layout that does not fit a kernel argument.
    #[error("{op}: a layout of {dims} dimensions that cannot be merged is too long for a kernel argument ({limit} at most); make the tensor contiguous first")]
    TooManyDims {
        /// The operation.
        op: &'static str,
        /// Dimensions of the layout.
        dims: usize,
        /// Maximum number.
        limit: usize,
    },

    /// A layout that shows more than there is.
    #[error("{op}: layout {layout:?} reaches beyond its buffer of {len} elements")]
    OutOfBounds {
        /// The operation.
        op: &'static str,
        /// The layout.
        layout: Layout,
        /// Elements of the buffer.
        len: usize,
    },

    /// A launch that the kernel does not take.
    #[error("kernel {kernel}: {message}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Geometry that it takes, and the one that was given.
        message: String,
    },

    /// An operation that is not supported.
    #[error("{0}")]
    Unsupported(String),
}

impl RocmError {
    /// Returns true if memory ran out: the device stays usable for smaller requests.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::BeyondReserve { .. } => true,
            Self::Hip { error, .. } => error.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<RocmError> for crate::Error {
    fn from(error: RocmError) -> Self {
        crate::Error::Rocm(Box::new(error)).bt()
    }
}

/// The CPU device's error for a dtype that `op` does not take.
pub(crate) fn unsupported_dtype(op: &'static str, dtype: DType) -> crate::Error {
    crate::Error::UnsupportedDTypeForOp(dtype, op).bt()
}

/// The CPU device's error for operands whose dtypes differ.
pub(crate) fn dtype_mismatch(op: &'static str, lhs: DType, rhs: DType) -> crate::Error {
    crate::Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt()
}

/// Returns the driver's text about the last failing call of this thread, and the usual meaning of HIP's code.
pub(crate) fn notes(code: Option<u32>) -> String {
    let mut notes = String::new();
    if let Some(detail) = rocm_loader::last_error() {
        notes.push_str("; ");
        notes.push_str(&detail);
    }
    if let Some(advice) = code.and_then(advice) {
        notes.push_str("; ");
        notes.push_str(advice);
    }
    notes
}

/// Codes of `hipError_t` (hip/hip_runtime_api.h) whose plain text leaves the reader alone.
fn advice(code: u32) -> Option<&'static str> {
    if let Some(advice) = rocm_loader::driver().ok().and_then(|driver| driver.advice(code)) {
        return Some(advice);
    }
    match code {
        100 => Some("no AMD GPU is visible: look at ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and the permissions of /dev/kfd"),
        200 => Some("the code object is damaged or of another format; rebuild with the kernels' sources unchanged"),
        209 => Some("the code object was compiled for another GPU: compile it for this one's arch"),
        700 | 719 => Some(
            "a kernel launched earlier on this stream was stopped; what it and its successors computed is lost, the device can be used on",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_says_how_much_and_where() {
        let error = RocmError::OutOfMemory {
            requested: 4096,
            free: 100,
            total: 1000,
            device: "rocm:1 (gfx1100)".to_string(),
        };
        let text = error.to_string();
        for part in ["4096 bytes requested", "100 of 1000 bytes free", "rocm:1 (gfx1100)"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn errors_arrive_as_the_rocm_variant() {
        let error: crate::Error = RocmError::Unsupported("what is asked for".to_string()).into();
        assert!(error.to_string().contains("what is asked for"), "{error}");
    }

    #[test]
    fn refused_dtypes_are_the_cpu_devices_errors() {
        // With RUST_BACKTRACE set the error is wrapped, so the texts are compared.
        let error = unsupported_dtype("matmul", DType::U8).to_string();
        assert!(error.contains("unsupported dtype U8 for op matmul"), "{error}");
        let error = dtype_mismatch("add", DType::U8, DType::F32).to_string();
        assert!(error.contains("dtype mismatch in add, lhs: U8, rhs: F32"), "{error}");
    }
}
