//! Launches of built-in kernels, with their geometry and their arguments on the stack.
use super::device::{DeviceState, RocmDevice};
use crate::rocm_backend::stream::capturing;
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{KernelFamily, KernelOf, BLOCK};
use rocm_rs::hip::bindings;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of elements of one launch of a built-in kernel. Kernels index elements with `unsigned int` in steps
/// of the grid size, so that an index above 2^31 could wrap around and the loop never end.
const MAX_ELEMENTS: usize = 1 << 31;

static LIMIT: AtomicUsize = AtomicUsize::new(MAX_ELEMENTS);

/// Returns the maximum number of elements of one launch; larger tensors are split into several.
#[inline]
pub(crate) fn max_elements() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// Lowers [`max_elements`], so that tests can split tensors that fit on a small GPU.
pub(crate) fn set_max_elements(elements: Option<usize>) {
    LIMIT.store(elements.map_or(MAX_ELEMENTS, |elements| elements.clamp(1, MAX_ELEMENTS)), Ordering::Relaxed);
}

/// Geometry of a launch: number and size of the workgroups, and their dynamic LDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Number of workgroups in x, y, z.
    pub grid: (u32, u32, u32),
    /// Number of threads per workgroup in x, y, z.
    pub block: (u32, u32, u32),
    /// Dynamic LDS of each workgroup in bytes.
    pub lds_bytes: u32,
}

impl LaunchConfig {
    /// Returns a launch of one thread per element, in workgroups of 256.
    ///
    /// # Errors
    /// [`RocmError::TooManyElements`] above 2^31 elements.
    pub fn for_elements(op: &'static str, elements: usize) -> Result<Self> {
        if elements > MAX_ELEMENTS {
            return Err(RocmError::TooManyElements { op, elements, limit: MAX_ELEMENTS }.into());
        }
        let grid = (elements as u64).div_ceil(BLOCK as u64) as u32;
        Ok(Self { grid: (grid, 1, 1), block: (BLOCK as u32, 1, 1), lds_bytes: 0 })
    }

    /// Returns a launch of `rows` workgroups of `block` threads in x.
    ///
    /// # Errors
    /// [`RocmError::TooManyElements`] if `rows * block` reaches 2^32, HIP's limit for the number of threads.
    pub fn for_rows(op: &'static str, rows: usize, block: u32) -> Result<Self> {
        Self::for_grid(op, (rows, 1, 1), block)
    }

    /// Returns a launch of workgroups in x, y and z with `block` threads in x, with the limit of [`LaunchConfig::for_rows`].
    pub(crate) fn for_grid(op: &'static str, (x, y, z): (usize, usize, usize), block: u32) -> Result<Self> {
        let limit = (u32::MAX / block.max(1)) as usize;
        let elements = x.saturating_mul(y).saturating_mul(z);
        if elements > limit {
            return Err(RocmError::TooManyElements { op, elements, limit }.into());
        }
        Ok(Self { grid: (x as u32, y as u32, z as u32), block: (block, 1, 1), lds_bytes: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.grid.0 == 0 || self.grid.1 == 0 || self.grid.2 == 0
    }
}

impl RocmDevice {
    /// Enqueues a built-in kernel on the device's stream without waiting for it. A grid of zero workgroups does nothing.
    /// [`hip_kernels::contract`] defines the kernels and their arguments.
    ///
    /// # Errors
    /// HIP's error for the launch, or [`RocmError::Launch`] if the kernel does not support the geometry. Errors that
    /// occur while the kernel runs are returned by the next call that waits for the stream.
    ///
    /// # Safety
    /// Every pointer must cover everything that the kernel reads or writes through it for the given sizes.
    #[inline]
    pub unsafe fn launch<F: KernelFamily>(
        &self,
        kernel: KernelOf<F::Any>,
        config: LaunchConfig,
        arguments: &F,
    ) -> Result<()> {
        // SAFETY: the caller guarantees the pointers.
        unsafe { self.launch_in(Order::Serial, kernel, config, arguments) }
    }

    /// Like [`Self::launch`]. In a captured graph, the launch may overlap with earlier ones, on GPUs that support it.
    ///
    /// # Errors
    /// See [`Self::launch`].
    ///
    /// # Safety
    /// See [`Self::launch`]. The kernel must call `CANDLE_WAIT_FOR_LAUNCHES` in at least one workgroup, and in each thread before it
    /// accesses memory that an earlier launch of the graph writes, or memory that one reads and this one writes.
    #[inline]
    pub unsafe fn launch_overlapping<F: KernelFamily>(
        &self,
        kernel: KernelOf<F::Any>,
        config: LaunchConfig,
        arguments: &F,
    ) -> Result<()> {
        // SAFETY: the caller guarantees the pointers and the waits.
        unsafe { self.launch_in(Order::Overlapping, kernel, config, arguments) }
    }

    /// Enqueues a kernel in an order.
    ///
    /// # Errors
    /// See [`Self::launch`].
    ///
    /// # Safety
    /// See [`Self::launch`], and [`Self::launch_overlapping`] for [`Order::Overlapping`].
    #[inline]
    unsafe fn launch_in<F: KernelFamily>(
        &self,
        order: Order,
        kernel: KernelOf<F::Any>,
        config: LaunchConfig,
        arguments: &F,
    ) -> Result<()> {
        if config.is_empty() {
            return Ok(());
        }
        self.state().stream.bind_and_flush()?;
        // SAFETY: the caller guarantees the pointers and the waits.
        unsafe { self.state().launch_in(order, kernel, config, arguments) }
    }
}

impl DeviceState {
    /// Like [`RocmDevice::launch`], without first enqueueing deferred launches. The GPU is bound.
    ///
    /// # Errors
    /// See [`RocmDevice::launch`].
    ///
    /// # Safety
    /// See [`RocmDevice::launch`].
    #[inline]
    pub(crate) unsafe fn launch_now<F: KernelFamily>(
        &self,
        kernel: KernelOf<F::Any>,
        config: LaunchConfig,
        arguments: &F,
    ) -> Result<()> {
        // SAFETY: the caller guarantees the pointers.
        unsafe { self.launch_in(Order::Serial, kernel, config, arguments) }
    }

    /// Like [`Self::launch_now`], in an order.
    ///
    /// # Errors
    /// See [`RocmDevice::launch`].
    ///
    /// # Safety
    /// See [`RocmDevice::launch`], and [`RocmDevice::launch_overlapping`] for [`Order::Overlapping`].
    #[inline]
    pub(crate) unsafe fn launch_in<F: KernelFamily>(
        &self,
        order: Order,
        kernel: KernelOf<F::Any>,
        config: LaunchConfig,
        arguments: &F,
    ) -> Result<()> {
        let threads = u64::from(config.block.0) * u64::from(config.block.1) * u64::from(config.block.2);
        if threads > u64::from(F::BLOCK) || (config.lds_bytes > 0 && !F::DYNAMIC_LDS) {
            return Err(geometry_refused::<F>(kernel.id().name(), &config));
        }
        let function = self.function(kernel.id())?;
        let arguments = arguments.arguments();
        // SAFETY: the build checked the family's arguments against the code object; the caller guarantees the pointers.
        unsafe { enqueue(self, function, config, arguments.as_ref(), kernel.id().name(), order) }
    }
}

#[cold]
fn geometry_refused<F: KernelFamily>(kernel: &str, config: &LaunchConfig) -> crate::Error {
    let lds = if F::DYNAMIC_LDS { "LDS of any size" } else { "no dynamic LDS" };
    RocmError::Launch {
        kernel: kernel.to_string(),
        message: format!("{config:?}, but it supports workgroups of up to {} threads and {lds}", F::BLOCK),
    }
    .into()
}

/// Order of a launch and the one before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The launch begins when all earlier ones have finished.
    Serial,
    /// In a captured graph, the launch may begin earlier, and waits for the others itself.
    Overlapping,
}

/// Attribute of a launch that may overlap with the one before it. HIP has CUDA's numbers of attributes, but not this one.
const OVERLAPPING_ATTRIBUTE: bindings::hipLaunchAttributeID = 6;

/// Calls hipModuleLaunchKernel, or hipDrvLaunchKernelEx for a launch that overlaps. The GPU is bound.
///
/// # Safety
/// `function` must belong to one of this device's modules, `arguments` must be the addresses of its arguments, and
/// every pointer among them must cover the memory that the kernel accesses.
#[inline]
pub(super) unsafe fn enqueue(
    state: &DeviceState,
    function: bindings::hipFunction_t,
    config: LaunchConfig,
    arguments: &[*const c_void],
    name: &str,
    order: Order,
) -> Result<()> {
    let (grid, block) = (config.grid, config.block);
    let params = arguments.as_ptr().cast_mut().cast();
    let is_overlapping = order == Order::Overlapping && state.overlaps_launches();
    // SAFETY: the caller guarantees the arguments; HIP copies their values before it returns and does not modify them.
    let code = unsafe {
        match is_overlapping {
            false => bindings::hipModuleLaunchKernel(
                function,
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                config.lds_bytes,
                state.stream.raw(),
                params,
                std::ptr::null_mut(),
            ),
            true => {
                let mut attribute: bindings::hipLaunchAttribute = std::mem::zeroed();
                attribute.id = OVERLAPPING_ATTRIBUTE;
                attribute.__bindgen_anon_1.value.cooperative = 1;
                let config = bindings::HIP_LAUNCH_CONFIG {
                    gridDimX: grid.0,
                    gridDimY: grid.1,
                    gridDimZ: grid.2,
                    blockDimX: block.0,
                    blockDimY: block.1,
                    blockDimZ: block.2,
                    sharedMemBytes: config.lds_bytes,
                    hStream: state.stream.raw(),
                    attrs: &raw mut attribute,
                    numAttrs: 1,
                };
                bindings::hipDrvLaunchKernelEx(&config, function, params, std::ptr::null_mut())
            }
        }
    };
    state.stream.check_code(code, || {
        let lds = config.lds_bytes;
        let call = if is_overlapping { "hipDrvLaunchKernelEx" } else { "hipModuleLaunchKernel" };
        format!("{call}({name}, grid {grid:?}, block {block:?}, {lds} B LDS)")
    })?;
    match state.stream.is_capturing() {
        false => drop(state.launches.fetch_add(1, Ordering::Relaxed)),
        // Counted when the graph is launched.
        true => capturing::count_launch(),
    }
    state.stream.wait().record_launch(name);
    Ok(())
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
