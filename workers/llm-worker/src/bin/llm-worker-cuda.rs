//! Serves a language model on an NVIDIA card.
use std::process::ExitCode;

use llm_worker::device::DeviceKind;

fn main() -> ExitCode {
    llm_worker::run::main(DeviceKind::Cuda)
}
