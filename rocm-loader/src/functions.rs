//! The C functions of each library.
#![allow(non_snake_case, reason = "named as in C")]

use rocm_driver_api::Library;

use crate::bound::after;
use crate::forward::{OnFailure, Symbol, check_declared, exported, forward, is};

/// The HIP runtime's functions.
pub mod hip {
    use super::*;
    use rocm_driver_api::hip::*;
    use rocm_rs::hip::bindings as declared;

    rocm_driver_api::hip_functions!(forward Hip);
}

/// rocBLAS' functions.
pub mod rocblas {
    use super::*;
    use rocm_driver_api::rocblas::*;
    use rocm_rs::rocblas::ffi as declared;

    rocm_driver_api::rocblas_functions!(forward RocBlas);
}

/// MIOpen's functions.
pub mod miopen {
    use super::*;
    use rocm_driver_api::miopen::*;
    use rocm_rs::miopen::ffi as declared;

    rocm_driver_api::miopen_functions!(forward MiOpen);
}

/// hipBLASLt's functions, types and constants.
pub mod hipblaslt {
    use super::*;
    pub use rocm_driver_api::hipblaslt::*;

    rocm_driver_api::hipblaslt_functions!(forward HipBlasLt);
}

/// RCCL's functions, types and constants.
pub mod rccl {
    use super::*;
    pub use rocm_driver_api::rccl::*;

    rocm_driver_api::rccl_functions!(forward Rccl);
}

/// The functions of each library.
pub(crate) static ALL: &[&[&Symbol]] =
    &[hip::SYMBOLS, rocblas::SYMBOLS, miopen::SYMBOLS, hipblaslt::SYMBOLS, rccl::SYMBOLS];
