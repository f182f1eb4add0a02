//! Serves a language model on the CPU.
fn main() -> std::process::ExitCode {
    llm_worker::run::main(worker_core::device::DeviceKind::Cpu)
}
