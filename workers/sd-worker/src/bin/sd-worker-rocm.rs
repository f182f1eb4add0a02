//! Image generation server for Stable Diffusion on AMD GPUs.
fn main() -> std::process::ExitCode {
    sd_worker::run::main(worker_core::device::DeviceKind::Rocm)
}
