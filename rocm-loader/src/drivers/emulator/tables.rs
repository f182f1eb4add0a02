//! Tables of the software GPU's functions. Its handle types differ from ROCm's, so each function is compared with its
//! prototype by the way the calling convention passes each value.
use rocm_driver_api::{Address, Library, Table};

use super::abi;

/// Builds a [`Table`] like `rocm_driver_api::table`, from functions that are called like their prototypes.
macro_rules! table {
    ($functions:ident $($need:ident $declaration:ident {
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*
    })*) => {
        &[$($((stringify!($name), entry!($need $functions $name fn($($type),*) -> $result)),)*)*]
    };
}

macro_rules! entry {
    (required $functions:ident $name:ident fn($($type:ty),*) -> $result:ty) => {{
        let function = $functions::$name as unsafe extern "C" fn($(infer!($type)),*) -> _;
        assert!(
            abi::is_compatible::<unsafe extern "C" fn($($type),*) -> $result, _>(function),
            concat!("the software GPU's ", stringify!($name), " differs from its prototype")
        );
        // SAFETY: both are function pointers; callers cast the address back to its prototype.
        Some(unsafe { std::mem::transmute::<unsafe extern "C" fn($(infer!($type)),*) -> _, Address>(function) })
    }};
    (optional $($any:tt)*) => {
        None
    };
}

/// Expands to one inferred type (`_`) for each parameter.
macro_rules! infer {
    ($type:ty) => {
        _
    };
}

const HIP: Table = {
    use rocm_driver_api::hip::*;
    use rocm_emulator::api;
    rocm_driver_api::hip_functions!(table api)
};

const ROCBLAS: Table = {
    use rocm_driver_api::rocblas::*;
    use rocm_emulator::rocblas;
    rocm_driver_api::rocblas_functions!(table rocblas)
};

const MIOPEN: Table = {
    use rocm_driver_api::miopen::*;
    use rocm_emulator::miopen;
    rocm_driver_api::miopen_functions!(table miopen)
};

const HIPBLASLT: Table = {
    use rocm_driver_api::hipblaslt::*;
    use rocm_emulator::hipblaslt;
    rocm_driver_api::hipblaslt_functions!(table hipblaslt)
};

const RCCL: Table = {
    use rocm_driver_api::rccl::*;
    use rocm_emulator::rccl;
    rocm_driver_api::rccl_functions!(table rccl)
};

pub(super) const TABLES: &[(Library, Table)] = &[
    (Library::Hip, HIP),
    (Library::RocBlas, ROCBLAS),
    (Library::MiOpen, MIOPEN),
    (Library::HipBlasLt, HIPBLASLT),
    (Library::Rccl, RCCL),
];
