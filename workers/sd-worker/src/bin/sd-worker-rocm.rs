//! Serves pictures by Stable Diffusion on an AMD card.
fn main() -> std::process::ExitCode {
    sd_worker::run::main(worker_core::device::DeviceKind::Rocm)
}
