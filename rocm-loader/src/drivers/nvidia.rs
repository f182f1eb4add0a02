//! CUDA's libraries as a driver, in a crate of its own.
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
