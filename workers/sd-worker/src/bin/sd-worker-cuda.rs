//! Image generation server for Stable Diffusion on NVIDIA GPUs.
fn main() -> std::process::ExitCode {
    sd_worker::run::main(worker_core::device::DeviceKind::Cuda)
}
