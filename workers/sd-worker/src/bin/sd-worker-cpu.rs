//! Image generation server for Stable Diffusion on the CPU.
fn main() -> std::process::ExitCode {
    sd_worker::run::main(worker_core::device::DeviceKind::Cpu)
}
