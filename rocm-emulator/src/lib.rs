//! A software GPU: it loads AMD code objects and interprets their machine code, wave by wave,
//! behind the C interfaces of the HIP runtime, rocBLAS, hipBLASLt and MIOpen.
//!
//! The modules, from the outside in:
//!
//! - [`api`]: the HIP functions, with HIP's names, arguments and error codes.
//! - [`parts`]: what an allocator says of the allocations that it divides.
//! - [`miopen`]: convolutions of MIOpen, computed on the host.
//! - [`rocblas`]: the rocBLAS functions, computed on the host.
//! - [`hipblaslt`]: those of hipBLASLt, likewise.
//! - `runtime`: devices, allocations, streams, events, modules: what the HIP functions act on.
//! - [`code_object`]: ELF, metadata notes, kernel descriptors, relocations.
//! - [`isa`]: machine code to [`isa::Inst`], one folder per instruction-set family.
//! - [`exec`]: runs a kernel's waves; knows memory and registers, and nothing of HIP.
//!
//! A device address is a host address. Nothing here knows Candle.
//!
//! The process says once which devices there are ([`configure`]); until then the HIP functions report that
//! there is none.
pub mod api;
pub mod code_object;
pub mod exec;
pub mod hipblaslt;
pub mod isa;
pub mod miopen;
pub mod parts;
pub mod rocblas;
mod runtime;

pub use runtime::{
    ConfigureError, DEFAULT_TOTAL_MEMORY, HipBlasLt, Injection, Miopen, Options, calls, configure,
    configure_with, inject, is_configured, last_fault, release_stalled,
};

/// The architectures of the configured devices, as gcnArchName says them; none before [`configure`].
pub fn device_archs() -> Vec<&'static str> {
    let archs = |runtime: &runtime::Runtime| {
        runtime.devices().iter().map(|device| device.arch.gcn_arch_name).collect()
    };
    runtime::runtime().map(archs).unwrap_or_default()
}

/// The architectures that [`configure`] accepts.
pub fn known_archs() -> impl Iterator<Item = &'static str> {
    runtime::arch::ARCHS.iter().map(|arch| arch.name)
}

/// What was wrong with this thread's last failing HIP call, with handles, sizes and devices.
pub fn last_error() -> Option<String> {
    runtime::last_detail()
}

/// Kernel launches that the process has enqueued.
pub fn launch_count() -> u64 {
    runtime::runtime().map(runtime::Runtime::launch_count).unwrap_or(0)
}

/// How often MIOpen compiled a solution for a shape; each handle compiles each once.
pub fn miopen_compiles() -> u64 {
    miopen::compiles()
}

/// How often work was given to a null stream, or the host waited for one. Each such call waits for other streams, and
/// on hardware for other users of the device.
pub fn null_stream_uses() -> u64 {
    let uses =
        |runtime: &runtime::Runtime| runtime.devices().iter().map(runtime::Device::null_stream_uses).sum();
    runtime::runtime().map(uses).unwrap_or(0)
}

/// Writes the profile of what was executed so far, where the options ask for one; it is written anyway when the
/// process ends.
///
/// # Errors
/// Those of writing the file.
pub fn write_profile() -> std::io::Result<()> {
    runtime::runtime().map_or(Ok(()), runtime::Runtime::write_profile)
}

/// The profile of what was executed since the last call, as the file has it: exact once the streams are idle. What
/// was taken is in no file; `None` where the options ask for no profile.
pub fn take_profile() -> Option<String> {
    runtime::runtime().ok().and_then(runtime::Runtime::take_profile)
}

/// What was executed so far, by kernel name: repeatable to the digit once the streams are idle.
pub fn counters() -> std::collections::BTreeMap<String, exec::Counters> {
    runtime::runtime().map(runtime::Runtime::counters).unwrap_or_default()
}
