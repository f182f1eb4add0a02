//! Kernel launches: checks, the kernel argument segment, and the call of the executor.
use super::error::{Result, bail};
use super::module::Function;
use super::{arch::ArchSpec, fault, runtime, stream::Queue};
use crate::code_object::{HiddenArgument, ValueKind};
use crate::exec::{self, PRIVATE_APERTURE, SHARED_APERTURE};
use std::ffi::c_void;
use std::sync::Arc;

/// Maximum number of work-items per workgroup on every chip.
pub const MAX_WORKGROUP_SIZE: u32 = 1024;
/// Tags of the values in hipModuleLaunchKernel's `extra`.
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;
const PARAM_END: usize = 3;
/// Maximum number of elements of `extra` that are read.
const MAX_EXTRA: usize = 16;

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of workgroups.
    pub grid: [u32; 3],
    /// Work-items per workgroup.
    pub block: [u32; 3],
    /// Dynamic LDS in bytes.
    pub dynamic_lds: u32,
}

/// A validated launch with its copied arguments, ready for the stream's thread.
pub struct PreparedLaunch {
    function: Arc<Function>,
    shape: Shape,
    kernarg: Vec<u8>,
}

impl Shape {
    /// Checks the shape against the chip and the kernel.
    ///
    /// # Errors
    /// `InvalidValue` for empty grids or blocks and too much LDS, `InvalidConfiguration` for too many work-items,
    /// `LaunchFailure` for more work-items than the kernel was compiled for.
    pub fn check(&self, arch: &ArchSpec, function: &Function) -> Result<()> {
        let name = &function.spec.name;
        let Self { grid, block, dynamic_lds } = *self;
        if grid.contains(&0) || block.contains(&0) {
            bail!(InvalidValue, "kernel {name}: grid {grid:?} of blocks {block:?} is empty");
        }
        let items = block.iter().try_fold(1u32, |product, n| product.checked_mul(*n));
        let Some(items) = items.filter(|items| *items <= MAX_WORKGROUP_SIZE) else {
            bail!(
                InvalidConfiguration,
                "kernel {name}: a block of {block:?} has more than {MAX_WORKGROUP_SIZE} work-items"
            );
        };
        if grid.iter().zip(block).any(|(groups, items)| groups.checked_mul(items).is_none()) {
            bail!(
                InvalidConfiguration,
                "kernel {name}: grid {grid:?} of blocks {block:?} has 2^32 work-items or more"
            );
        }
        let metadata = &function.kernel.metadata;
        if items > metadata.max_workgroup_size {
            bail!(
                LaunchFailure,
                "kernel {name}: blocks of {items} work-items, compiled for at most {}",
                metadata.max_workgroup_size
            );
        }
        if metadata.required_workgroup_size.is_some_and(|required| required != block) {
            bail!(
                InvalidConfiguration,
                "kernel {name}: a block of {block:?}, compiled for {:?}",
                metadata.required_workgroup_size
            );
        }
        let lds = u64::from(function.spec.lds_bytes) + u64::from(dynamic_lds);
        if lds > u64::from(arch.lds_per_workgroup) {
            bail!(
                InvalidValue,
                "kernel {name}: {} static and {dynamic_lds} dynamic bytes of LDS; a workgroup has {}",
                function.spec.lds_bytes,
                arch.lds_per_workgroup
            );
        }
        Ok(())
    }

    fn hidden(&self, argument: HiddenArgument) -> u64 {
        let axis = |values: [u32; 3], n: u8| u64::from(values[usize::from(n)]);
        match argument {
            HiddenArgument::BlockCount(n) => axis(self.grid, n),
            HiddenArgument::GroupSize(n) => axis(self.block, n),
            // HIP's grids consist of whole workgroups and start at zero.
            HiddenArgument::Remainder(_) | HiddenArgument::GlobalOffset(_) | HiddenArgument::Zero => 0,
            HiddenArgument::GridDims => 3,
            HiddenArgument::DynamicLdsSize => u64::from(self.dynamic_lds),
            HiddenArgument::PrivateBase => PRIVATE_APERTURE >> 32,
            HiddenArgument::SharedBase => SHARED_APERTURE >> 32,
        }
    }
}

impl PreparedLaunch {
    /// Checks a launch and copies its arguments.
    ///
    /// # Errors
    /// The errors of [`Shape::check`]; `InvalidValue` if arguments are missing or passed twice, or if the buffer of
    /// `extra` does not fit the kernel.
    ///
    /// # Safety
    /// `params` must be null or point to one pointer per explicit argument, each to as many bytes as the
    /// kernel declares; `extra` must be null or a list as hipModuleLaunchKernel describes.
    pub unsafe fn new(
        arch: &ArchSpec,
        function: Arc<Function>,
        shape: Shape,
        params: *const *mut c_void,
        extra: *const *mut c_void,
    ) -> Result<Self> {
        shape.check(arch, &function)?;
        let metadata = &function.kernel.metadata;
        let mut kernarg = vec![0u8; metadata.kernarg_bytes as usize];
        let name = &metadata.name;
        if !params.is_null() && !extra.is_null() {
            bail!(InvalidValue, "kernel {name}: both kernelParams and extra were passed");
        }
        if !extra.is_null() {
            // SAFETY: the caller guarantees the list and its buffer.
            unsafe { copy_buffer(name, &mut kernarg, extra)? };
        } else if params.is_null() {
            if function.explicit_arguments().next().is_some() {
                bail!(InvalidValue, "kernel {name}: no arguments were passed");
            }
        } else {
            for (index, argument) in function.explicit_arguments().enumerate() {
                // SAFETY: the caller guarantees one pointer per explicit argument.
                let value = unsafe { *params.add(index) };
                if value.is_null() {
                    bail!(InvalidValue, "kernel {name}: the pointer to argument {index} is null");
                }
                let place = argument.offset as usize..(argument.offset + argument.size) as usize;
                let Some(place) = kernarg.get_mut(place) else {
                    bail!(InvalidImage, "kernel {name}: argument {index} is outside the argument segment");
                };
                // SAFETY: the caller guarantees as many bytes as the kernel declares.
                unsafe {
                    std::ptr::copy_nonoverlapping(value.cast::<u8>(), place.as_mut_ptr(), place.len());
                }
            }
        }
        for argument in &metadata.arguments {
            let ValueKind::Hidden(hidden) = argument.kind else { continue };
            let place = argument.offset as usize..(argument.offset + argument.size) as usize;
            let bytes = shape.hidden(hidden).to_le_bytes();
            if let Some(place) = kernarg.get_mut(place) {
                let len = place.len().min(bytes.len());
                place[..len].copy_from_slice(&bytes[..len]);
            }
        }
        Ok(Self { function, shape, kernarg })
    }

    /// Executes the launch on the calling thread as the next launch of a stream.
    ///
    /// # Errors
    /// `IllegalAddress` or `LaunchFailure` with the fault's text.
    pub fn run(&self, queue: &Queue) -> Result<()> {
        let runtime = runtime()?;
        let device = runtime.device(self.function.module.device)?;
        let outcome = {
            let _running = runtime.memory.running();
            let memory = device.address_space(&runtime.memory);
            exec::run(&exec::Launch {
                program: &self.function.module.program,
                kernel: &self.function.spec,
                grid: self.shape.grid,
                block: self.shape.block,
                dynamic_lds: self.shape.dynamic_lds,
                kernarg: &self.kernarg,
                memory: &memory,
                threads: runtime.options.threads,
                instruction_limit: runtime.options.instruction_limit,
                instrumentation: exec::Instrumentation {
                    seed: queue.seed_of_launch(&self.function.spec.name),
                    checks: runtime.options.checks,
                    profile: runtime.options.profile.is_some(),
                },
            })
        };
        match outcome {
            Ok(counters) => {
                runtime.count(&self.function, counters);
                Ok(())
            }
            Err(fault) => Err(fault::to_error(&fault)),
        }
    }
}

/// Fills the kernel arguments from the buffer in `extra`.
///
/// # Safety
/// `extra` must be a list of tags and values that ends with HIP_LAUNCH_PARAM_END.
unsafe fn copy_buffer(name: &str, kernarg: &mut [u8], extra: *const *mut c_void) -> Result<()> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    let mut at = 0;
    loop {
        // SAFETY: the end of the list has not been read yet.
        let marker = unsafe { *extra.add(at) };
        if marker.addr() == PARAM_END {
            break;
        }
        // SAFETY: a value follows the tag.
        let value = unsafe { *extra.add(at + 1) };
        match marker.addr() {
            PARAM_BUFFER_POINTER => buffer = value.cast(),
            // SAFETY: the value points to the size.
            PARAM_BUFFER_SIZE if !value.is_null() => size = Some(unsafe { *value.cast::<usize>() }),
            _ => bail!(InvalidValue, "kernel {name}: invalid tag {marker:?} in extra"),
        }
        at += 2;
        if at > MAX_EXTRA {
            bail!(InvalidValue, "kernel {name}: extra has no end tag");
        }
    }
    match size {
        Some(size) if !buffer.is_null() && size <= kernarg.len() => {
            // SAFETY: the caller guarantees `size` bytes at `buffer`, and they fit (checked above).
            unsafe { std::ptr::copy_nonoverlapping(buffer, kernarg.as_mut_ptr(), size) };
            Ok(())
        }
        _ => bail!(
            InvalidValue,
            "kernel {name}: extra's buffer has {size:?} bytes, but the kernel takes {}",
            kernarg.len()
        ),
    }
}
