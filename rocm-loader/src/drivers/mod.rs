//! The drivers that can be named, one folder and one row each.
mod emulator;
mod native;
mod nvidia;

use rocm_driver_api::Registration;

/// Every driver in the order in which they are described and tried.
pub(crate) static ALL: &[&Registration] =
    &[&native::REGISTRATION, &emulator::REGISTRATION, &nvidia::REGISTRATION];
