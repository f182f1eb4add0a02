//! Errors of the ROCm backend.
use crate::{DType, Layout};
use rocm_rs::{hip, rocblas};

/// An error of the ROCm backend, returned to the caller as [`crate::Error::Rocm`].
///
/// A device stays usable after a failed call, because HIP's error state is cleared.
#[derive(Debug, thiserror::Error)]
pub enum RocmError {
    /// There is no usable driver: ROCm is missing, there is no GPU, or the choice of `CANDLE_ROCM_DRIVER` is unavailable.
    #[error(transparent)]
    Driver(#[from] rocm_loader::LoadError),

    /// This binary has no code object for the GPU, or it is corrupt.
    #[error(transparent)]
    CodeObject(#[from] hip_kernels::KernelError),

    /// A HIP call failed, or an earlier kernel failed and the call returned its error.
    #[error("{call} failed on {device}: {error}{notes}")]
    Hip {
        /// The call, with its sizes.
        call: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// HIP's error.
        error: hip::Error,
        /// The driver's message and advice, each after a semicolon; may be empty.
        notes: String,
    },

    /// A rocBLAS call failed.
    #[error("{call} failed on {device}: {error}{notes}")]
    Rocblas {
        /// The call, with its sizes.
        call: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// rocBLAS' error.
        error: rocblas::Error,
        /// See [`Self::Hip`].
        notes: String,
    },

    /// The GPU has not enough free memory, even after the cached memory was returned to the driver.
    #[error(
        "out of device memory on {device}: {requested} bytes requested, {free} of {total} bytes free; \
         drop tensors that are no longer needed, or use a smaller batch, a shorter context or a smaller dtype"
    )]
    OutOfMemory {
        /// Bytes of the request.
        requested: usize,
        /// Bytes that are free, see [`RocmDevice::memory_info`](crate::RocmDevice::memory_info).
        free: usize,
        /// Bytes of the GPU.
        total: usize,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// The request would leave less free memory than the reserve.
    #[error(
        "{requested} bytes requested on {device}, where {free} of {total} bytes are free and {reserve} bytes are kept \
         free for the desktop, the driver and libraries; lower this reserve with CANDLE_ROCM_MEMORY_RESERVE=bytes or \
         RocmDevice::set_memory_reserve, drop tensors that are no longer needed, or use a smaller batch"
    )]
    BeyondReserve {
        /// Bytes of the request.
        requested: usize,
        /// Bytes that must stay free.
        reserve: usize,
        /// Bytes that are free, see [`RocmDevice::memory_info`](crate::RocmDevice::memory_info).
        free: usize,
        /// Bytes of the GPU.
        total: usize,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// The host waited longer than the deadline.
    #[error(
        "{device} has not finished after {seconds:.3} s, the deadline that was set ({purpose}); last launched: \
         {launches}; raise the deadline (CANDLE_ROCM_DEADLINE=seconds or RocmDevice::set_deadline), or restart the \
         process if a kernel hangs: its memory is not released before the process ends"
    )]
    DeadlineExceeded {
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Time waited, in seconds.
        seconds: f64,
        /// Purpose of the wait.
        purpose: &'static str,
        /// Names of the last launched kernels, separated by commas.
        launches: String,
    },

    /// The GPU computed a wrong result in its self-test.
    #[error("{device} computes wrong results: {computation}; do not use it, and unset HSA_OVERRIDE_GFX_VERSION if it is set")]
    WrongResult {
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// The computation, its result, and the expected result.
        computation: String,
    },

    /// An environment variable or a setting has an invalid value.
    #[error("{0}")]
    InvalidSetting(String),

    /// There is no GPU with this number.
    #[error("rocm:{ordinal} does not exist: {driver} has {count} device(s), numbered from 0")]
    NoSuchDevice {
        /// The requested number.
        ordinal: usize,
        /// Number of GPUs.
        count: usize,
        /// Description of the driver.
        driver: String,
    },

    /// A kernel found an index out of range. It made no access with this index.
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

    /// A code object of this binary lacks a built-in kernel.
    #[error("no kernel {kernel} in module {module} (on {device}): the code objects of this binary are corrupt; rebuild it")]
    MissingKernel {
        /// The module.
        module: String,
        /// The kernel.
        kernel: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
    },

    /// A user-supplied code object is invalid or lacks the requested kernel.
    #[error("custom module {module} on {device}: {reason}")]
    CustomModule {
        /// The module's name, as passed by the caller.
        module: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Cause.
        reason: String,
    },

    /// The arguments of a launch do not match the user-supplied kernel. Nothing was launched.
    #[error("kernel {kernel} on {device}: {message}")]
    InvalidArguments {
        /// The kernel.
        kernel: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// The argument, its expected size and the given size.
        message: String,
    },

    /// An operation that cannot be split into several launches has too many elements.
    #[error("{op}: {elements} elements are more than a kernel can index ({limit}); split the tensor")]
    TooManyElements {
        /// The operation.
        op: &'static str,
        /// Number of elements.
        elements: usize,
        /// Maximum number.
        limit: usize,
    },

    /// A layout has too many dimensions for a kernel argument.
    #[error("{op}: a layout of {dims} dimensions that cannot be merged is too long for a kernel argument ({limit} at most); make the tensor contiguous first")]
    TooManyDims {
        /// The operation.
        op: &'static str,
        /// Number of dimensions that remain after merging.
        dims: usize,
        /// Maximum number.
        limit: usize,
    },

    /// A layout exceeds its buffer.
    #[error("{op}: layout {layout:?} reaches beyond its buffer of {len} elements")]
    OutOfBounds {
        /// The operation.
        op: &'static str,
        /// The layout.
        layout: Layout,
        /// Number of elements in the buffer.
        len: usize,
    },

    /// A kernel does not support the geometry of a launch.
    #[error("kernel {kernel}: {message}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// The given geometry, and the limits of the kernel.
        message: String,
    },

    /// An operation that a graph cannot record. The capture continues without it.
    #[error("{operation} is not possible while a graph is captured on {device}; {remedy}")]
    NotCapturable {
        /// The operation, with its sizes.
        operation: String,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Instruction that avoids the error, such as an order of operations.
        remedy: &'static str,
    },

    /// Graphs are disabled on a device.
    #[error("graphs are disabled on {device}: {reason}; run the operations without a graph")]
    GraphsDisabled {
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Cause.
        reason: String,
    },

    /// An operation between ranks failed, or a rank did not take part in time.
    #[error("{operation} failed on rank {rank} of {world_size} ({device}): {cause}")]
    Collective {
        /// The operation, with its sizes.
        operation: String,
        /// Rank that returns the error.
        rank: usize,
        /// Number of ranks.
        world_size: usize,
        /// Device, like `rocm:0 (gfx1100)`.
        device: String,
        /// Cause, with the rank at fault if it is known, and the remedy.
        cause: String,
    },

    /// An operation that is not supported.
    #[error("{0}")]
    Unsupported(String),
}

impl RocmError {
    /// Returns true if device memory ran out. Smaller requests may still succeed.
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

/// Returns the CPU device's error for a dtype that `op` does not support.
pub(crate) fn unsupported_dtype(op: &'static str, dtype: DType) -> crate::Error {
    crate::Error::UnsupportedDTypeForOp(dtype, op).bt()
}

/// Returns the CPU device's error for operands with different dtypes.
pub(crate) fn dtype_mismatch(op: &'static str, lhs: DType, rhs: DType) -> crate::Error {
    crate::Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt()
}

/// Returns the driver's message about the last failed call of this thread, and advice for HIP's error code.
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

/// Returns advice for codes of `hipError_t` (hip/hip_runtime_api.h) whose message does not name a remedy.
fn advice(code: u32) -> Option<&'static str> {
    if let Some(advice) = rocm_loader::driver().ok().and_then(|driver| driver.advice(code)) {
        return Some(advice);
    }
    match code {
        100 => Some("no AMD GPU is visible: check ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and the permissions of /dev/kfd"),
        200 => Some("the code object is corrupt or in another format; rebuild it from unmodified kernel sources"),
        209 => Some(
            "the code object is for another GPU, or for a generic target that this HIP does not load: compile it for this GPU's architecture (built-in kernels: CANDLE_ROCM_ARCHS)",
        ),
        700 | 719 => Some(
            "a kernel launched earlier on this stream was stopped; its results and those of later kernels are lost, but the device stays usable",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_names_sizes_and_device() {
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
    fn errors_convert_to_the_rocm_variant() {
        let error: crate::Error = RocmError::Unsupported("unsupported operation".to_string()).into();
        assert!(error.to_string().contains("unsupported operation"), "{error}");
    }

    #[test]
    fn dtype_errors_equal_those_of_the_cpu_device() {
        // With RUST_BACKTRACE set the error is wrapped, so the texts are compared.
        let error = unsupported_dtype("matmul", DType::U8).to_string();
        assert!(error.contains("unsupported dtype U8 for op matmul"), "{error}");
        let error = dtype_mismatch("add", DType::U8, DType::F32).to_string();
        assert!(error.contains("dtype mismatch in add, lhs: U8, rhs: F32"), "{error}");
    }
}
