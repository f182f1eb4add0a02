//! Serves pictures by Stable Diffusion on an NVIDIA card.
fn main() -> std::process::ExitCode {
    sd_worker::run::main(worker_core::device::DeviceKind::Cuda)
}
