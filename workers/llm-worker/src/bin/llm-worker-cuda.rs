//! Serves a language model on an NVIDIA card.
use std::process::ExitCode;

use worker_core::device::DeviceKind;

fn main() -> ExitCode {
    llm_worker::run::main(DeviceKind::Cuda)
}
