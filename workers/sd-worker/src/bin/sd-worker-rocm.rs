//! Serves pictures by Stable Diffusion on an AMD card.
use std::process::ExitCode;

use worker_core::device::DeviceKind;

fn main() -> ExitCode {
    sd_worker::run::main(DeviceKind::Rocm)
}
