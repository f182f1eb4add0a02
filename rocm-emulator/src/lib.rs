//! A software GPU: it loads AMD code objects and interprets their machine code, wave by wave,
//! behind the C interfaces of the HIP runtime and rocBLAS.
//!
//! The rooms, from the outside in:
//!
//! - [`api`]: the HIP functions, with HIP's names, arguments and error codes.
//! - [`rocblas`]: the rocBLAS functions, computed on the host.
//! - [`runtime`]: devices, allocations, streams, events, modules: what the HIP functions act on.
//! - [`code_object`]: ELF, metadata notes, kernel descriptors, relocations.
//! - [`isa`]: machine code to [`isa::Inst`], one folder per instruction-set family.
//! - [`exec`]: runs a kernel's waves; knows memory and registers, and nothing of HIP.
//!
//! A device address is a host address. Nothing here knows Candle.
pub mod exec;
pub mod isa;
