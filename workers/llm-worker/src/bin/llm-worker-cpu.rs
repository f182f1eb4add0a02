//! Serves a language model on the CPU.
use std::process::ExitCode;

use worker_core::device::DeviceKind;

fn main() -> ExitCode {
    llm_worker::run::main(DeviceKind::Cpu)
}
