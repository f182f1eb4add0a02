//! The software GPU as a driver. The build fails if its C functions or structures differ from ROCm's.
#[cfg(feature = "emulator")]
mod abi;
#[cfg(feature = "emulator")]
mod device;
#[cfg(feature = "emulator")]
mod layout;
#[cfg(feature = "emulator")]
mod tables;

use rocm_driver_api::{Driver, Registration};

#[cfg(feature = "emulator")]
const DRIVER: Option<&dyn Driver> = Some(&device::SoftwareGpu);
#[cfg(not(feature = "emulator"))]
const DRIVER: Option<&dyn Driver> = None;

pub(super) static REGISTRATION: Registration = Registration {
    name: "emulator",
    usage: "`emulator` or `emulator:ARCH[,ARCH...]` (the software GPU, e.g. `emulator:gfx1100`)",
    feature: Some("emulator"),
    driver: DRIVER,
};
