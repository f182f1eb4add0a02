//! Serves pictures by Stable Diffusion on an NVIDIA card.
use std::process::ExitCode;

use sd_worker::device::DeviceKind;

fn main() -> ExitCode {
    sd_worker::run::main(DeviceKind::Cuda)
}
