//! Serves a language model on an AMD GPU.
fn main() -> std::process::ExitCode {
    llm_worker::run::main(worker_core::device::DeviceKind::Rocm)
}
