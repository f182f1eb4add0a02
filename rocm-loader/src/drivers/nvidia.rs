//! Registration of the NVIDIA driver, which the crate nvidia-driver implements on CUDA's libraries.
use rocm_driver_api::{Driver, Registration};

#[cfg(feature = "nvidia")]
const DRIVER: Option<&dyn Driver> = Some(&nvidia_driver::DRIVER);
#[cfg(not(feature = "nvidia"))]
const DRIVER: Option<&dyn Driver> = None;

pub(super) static REGISTRATION: Registration = Registration {
    name: "nvidia",
    usage: "`nvidia` (CUDA, for development)",
    feature: Some("nvidia"),
    driver: DRIVER,
};
