//! Serves pictures by Stable Diffusion on an NVIDIA card.
use std::process::ExitCode;

use worker_core::device::DeviceKind;

fn main() -> ExitCode {
    sd_worker::run::main(DeviceKind::Cuda)
}
