//! A software GPU. It loads AMD code objects and interprets their machine code wave by wave, behind the C interfaces of
//! the HIP runtime, rocBLAS, hipBLASLt, MIOpen and RCCL.
//!
//! The modules, from the outermost to the innermost:
//!
//! - [`api`]: the HIP functions, with HIP's names, arguments and error codes.
//! - [`parts`]: functions by which memory pools report their suballocations.
//! - [`miopen`]: MIOpen's convolutions, computed on the host.
//! - [`rocblas`]: the rocBLAS functions, computed on the host.
//! - [`hipblaslt`]: the hipBLASLt functions, computed on the host.
//! - [`rccl`]: the RCCL functions, computed on the host.
//! - `runtime`: the state behind the HIP functions: devices, allocations, streams, events, modules.
//! - [`code_object`]: ELF, metadata notes, kernel descriptors, relocations.
//! - [`isa`]: machine code to [`isa::Inst`], one folder per instruction-set family.
//! - [`exec`]: executes a kernel's waves on memory and registers, independently of HIP.
//!
//! A device address is a host address. Nothing here depends on Candle.
//!
//! The process configures the devices once with [`configure`]; until then the HIP functions report that there is no
//! device.
pub mod api;
mod c_functions;
pub mod code_object;
pub mod exec;
pub mod hipblaslt;
pub mod isa;
pub mod miopen;
pub mod parts;
pub mod rccl;
pub mod rocblas;
mod runtime;

pub use runtime::{
    CollectiveFault, ConfigureError, DEFAULT_TOTAL_MEMORY, HipBlasLt, Injection, Miopen, Options, calls,
    configure, configure_with, inject, is_configured, last_fault, release_stalled,
};

/// Returns the gcnArchName of every configured device; empty before [`configure`].
pub fn device_archs() -> Vec<&'static str> {
    let archs = |runtime: &runtime::Runtime| {
        runtime.devices().iter().map(|device| device.arch.gcn_arch_name).collect()
    };
    runtime::runtime().map(archs).unwrap_or_default()
}

/// Returns the architectures that [`configure`] accepts.
pub fn known_archs() -> impl Iterator<Item = &'static str> {
    runtime::arch::ARCHS.iter().map(|arch| arch.name())
}

/// Returns the detailed cause of this thread's last failing HIP call, with handles, sizes and devices.
pub fn last_error() -> Option<String> {
    runtime::last_detail()
}

/// Returns the folder with the files of procfs and sysfs of the simulated machine; `None` if the options name none.
pub fn system_folder() -> Option<&'static std::path::Path> {
    runtime::runtime().ok()?.options.system.as_deref()
}

/// Returns the number of kernel launches that the process has enqueued.
pub fn launch_count() -> u64 {
    runtime::runtime().map(runtime::Runtime::launch_count).unwrap_or(0)
}

/// Returns how often MIOpen compiled a solution for a shape. Each handle compiles each solution once.
pub fn miopen_compiles() -> u64 {
    miopen::compiles()
}

/// Returns how often work was submitted to a null stream or the host waited for one. Each such call waits for other
/// streams and, on hardware, for other users of the device.
pub fn null_stream_uses() -> u64 {
    let uses =
        |runtime: &runtime::Runtime| runtime.devices().iter().map(runtime::Device::null_stream_uses).sum();
    runtime::runtime().map(uses).unwrap_or(0)
}

/// Writes the profile of all launches so far if the options enable profiling. It is also written when the process ends.
///
/// # Errors
/// The profile's file cannot be written.
pub fn write_profile() -> std::io::Result<()> {
    runtime::runtime().map_or(Ok(()), runtime::Runtime::write_profile)
}

/// Returns the profile since the last call in the file's format and resets it, so that the file lacks these launches. It
/// is complete if the streams are idle. `None` if profiling is not enabled.
pub fn take_profile() -> Option<String> {
    runtime::runtime().ok().and_then(runtime::Runtime::take_profile)
}

/// Returns the counters of all launches so far by kernel name. They are exactly reproducible if the streams are idle.
pub fn counters() -> std::collections::BTreeMap<String, exec::Counters> {
    runtime::runtime().map(runtime::Runtime::counters).unwrap_or_default()
}
