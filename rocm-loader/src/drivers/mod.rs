//! The built-in drivers: one module and one entry of [`ALL`] for each.
mod emulator;
mod native;
mod nvidia;

use rocm_driver_api::Registration;

/// Every driver, in the order in which reports list them and detection tries them.
pub(crate) static ALL: &[&Registration] =
    &[&native::REGISTRATION, &emulator::REGISTRATION, &nvidia::REGISTRATION];
