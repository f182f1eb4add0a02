//! Launching a kernel: geometry, arguments on the stack, one call.
use super::device::DeviceState;
use super::kernels::Kernel;
use super::layout::{KernelLayout, Strided};
use super::RocmError;
use crate::scalar::Scalar;
use crate::Result;
use half::{bf16, f16};
use rocm_rs::hip;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Threads per workgroup of elementwise kernels.
pub(super) const BLOCK: u32 = 256;

/// The most elements a shipped kernel is launched for: they count in `unsigned int` and step by the size of the
/// grid, so that a count above 2^31 could wrap around and never end.
pub(super) const MAX_ELEMENTS: usize = 1 << 31;

/// Grid and workgroup size, and the dynamic LDS of each workgroup in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Workgroups in x, y, z.
    pub grid: (u32, u32, u32),
    /// Threads per workgroup in x, y, z.
    pub block: (u32, u32, u32),
    pub lds_bytes: u32,
}

impl LaunchConfig {
    /// One thread per element, in workgroups of 256.
    ///
    /// # Errors
    /// [`RocmError::TooManyElements`] above 2^31 elements.
    pub fn for_elements(op: &'static str, elements: usize) -> Result<Self> {
        if elements > MAX_ELEMENTS {
            return Err(RocmError::TooManyElements { op, elements, limit: MAX_ELEMENTS }.into());
        }
        let grid = (elements as u64).div_ceil(u64::from(BLOCK)) as u32;
        Ok(Self { grid: (grid, 1, 1), block: (BLOCK, 1, 1), lds_bytes: 0 })
    }

    /// The same for kernels that take dense elements in packs of `width`: one thread per pack.
    pub(super) fn for_packs(
        op: &'static str,
        elements: usize,
        strided: &Strided,
        width: usize,
    ) -> Result<Self> {
        let config = Self::for_elements(op, elements)?;
        if strided.num_dims == 0 {
            return Self::for_elements(op, elements.div_ceil(width));
        }
        Ok(config)
    }

    /// `rows` workgroups of `block` threads in x.
    ///
    /// # Errors
    /// [`RocmError::TooManyElements`] if HIP could not count the threads: `rows * block` must stay below 2^32.
    pub fn for_rows(op: &'static str, rows: usize, block: u32) -> Result<Self> {
        let limit = (u32::MAX / block.max(1)) as usize;
        if rows > limit {
            return Err(RocmError::TooManyElements { op, elements: rows, limit }.into());
        }
        Ok(Self { grid: (rows as u32, 1, 1), block: (block, 1, 1), lds_bytes: 0 })
    }
}

/// A type that may be passed to a kernel by value.
///
/// # Safety
/// The type must be `repr(C)` or a primitive, laid out as the kernel's parameter is, and free of pointers into
/// host memory that the device cannot reach.
pub unsafe trait KernelArg {}

macro_rules! kernel_args {
    ($($t:ty),*) => {
        $(
            // SAFETY: same size and alignment as the C type that the kernels declare.
            unsafe impl KernelArg for $t {}
        )*
    };
}
kernel_args!(u8, i8, u16, i16, u32, i32, u64, i64, usize, f32, f64, bool, f16, bf16, float8::F8E4M3);
kernel_args!(DevicePtr, KernelLayout);

/// An address in a device's memory, as a kernel takes it. Null for an absent operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DevicePtr(pub *mut c_void);

impl DevicePtr {
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// The most arguments a launch takes; the longest upstream kernel has 17.
const MAX_ARGS: usize = 32;

/// A kernel of one device, found by [`RocmDevice::kernel`](super::RocmDevice::kernel).
#[derive(Clone, Copy)]
pub struct RocmKernel<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) state: &'a DeviceState,
}

impl<'a> RocmKernel<'a> {
    pub fn name(&self) -> &'a str {
        self.kernel.name()
    }

    /// Starts a launch: add the arguments in the kernel's order, then [`Launch::run`].
    pub fn launch(&self, config: LaunchConfig) -> Launch<'a> {
        Launch {
            kernel: self.kernel,
            state: self.state,
            config,
            args: [std::ptr::null_mut(); MAX_ARGS],
            count: 0,
            borrowed: PhantomData,
        }
    }
}

/// A launch in the making. Arguments are borrowed until it has run; nothing is allocated.
#[must_use = "nothing happens until run is called"]
pub struct Launch<'a> {
    kernel: &'a Kernel,
    state: &'a DeviceState,
    config: LaunchConfig,
    args: [*mut c_void; MAX_ARGS],
    count: usize,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Launch<'a> {
    pub fn arg<T: KernelArg>(mut self, value: &'a T) -> Self {
        if let Some(slot) = self.args.get_mut(self.count) {
            *slot = (value as *const T).cast_mut().cast();
        }
        self.count += 1;
        self
    }

    /// Number of dims and the layout itself, the pair that strided kernels take.
    pub fn strided(self, strided: &'a Strided) -> Self {
        self.arg(&strided.num_dims).arg(&strided.layout)
    }

    /// The value within `scalar`, in its own dtype.
    pub fn scalar(self, scalar: &'a Scalar) -> Self {
        match scalar {
            Scalar::U8(v) => self.arg(v),
            Scalar::U32(v) => self.arg(v),
            Scalar::I16(v) => self.arg(v),
            Scalar::I32(v) => self.arg(v),
            Scalar::I64(v) => self.arg(v),
            Scalar::F32(v) => self.arg(v),
            Scalar::F64(v) => self.arg(v),
            Scalar::F16(v) => self.arg(v),
            Scalar::BF16(v) => self.arg(v),
            Scalar::F8E4M3(v) => self.arg(v),
        }
    }

    /// Enqueues the kernel on the device's stream and returns at once. A grid of zero workgroups does nothing.
    ///
    /// # Errors
    /// What HIP says of the launch itself. What goes wrong while the kernel runs comes back from the next call
    /// that waits for the stream.
    ///
    /// # Safety
    /// Number, order and types of the arguments must be the kernel's, and every pointer must cover all that the
    /// kernel reads or writes through it.
    pub unsafe fn run(mut self) -> Result<()> {
        let (grid, block) = (self.config.grid, self.config.block);
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        if self.count > MAX_ARGS {
            return Err(RocmError::Launch {
                kernel: self.kernel.name().to_string(),
                message: format!("{} arguments, at most {MAX_ARGS} can be passed", self.count),
            }
            .into());
        }
        self.state.bind()?;
        let launched = self.kernel.function.launch(
            hip::Dim3 { x: grid.0, y: grid.1, z: grid.2 },
            hip::Dim3 { x: block.0, y: block.1, z: block.2 },
            self.config.lds_bytes,
            Some(&self.state.stream),
            &mut self.args[..self.count],
        );
        self.state.check(launched, || {
            let lds = self.config.lds_bytes;
            format!(
                "hipModuleLaunchKernel({}, grid {grid:?}, block {block:?}, {lds} B LDS)",
                self.kernel.name()
            )
        })?;
        self.state.launches.fetch_add(1, Ordering::Relaxed);
        self.state.wait.launched(self.kernel.name());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_all_elements() {
        for (elements, grid) in [(0, 0), (1, 1), (256, 1), (257, 2), (MAX_ELEMENTS, 1 << 23)] {
            assert_eq!(LaunchConfig::for_elements("test", elements).unwrap().grid, (grid, 1, 1));
        }
        assert!(LaunchConfig::for_elements("test", MAX_ELEMENTS + 1).is_err());
    }

    #[test]
    fn hip_counts_threads_in_32_bits() {
        assert!(LaunchConfig::for_rows("test", (1 << 22) - 1, 1024).is_ok());
        assert!(LaunchConfig::for_rows("test", 1 << 22, 1024).is_err());
    }
}
