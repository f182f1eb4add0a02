//! Serves pictures by Stable Diffusion on an AMD card.
use std::process::ExitCode;

use sd_worker::device::DeviceKind;

fn main() -> ExitCode {
    sd_worker::run::main(DeviceKind::Rocm)
}
