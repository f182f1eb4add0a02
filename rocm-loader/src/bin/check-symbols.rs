//! Compares ROCm libraries with the forwarded functions. Fails if a library lacks any of them.
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        eprintln!(
            "usage: check-symbols FILE.so... (libamdhip64, librocblas, libMIOpen, libhipblaslt, librccl of any ROCm)"
        );
        return ExitCode::from(2);
    }
    match rocm_loader::symbols::check(&files) {
        Ok(report) => {
            println!("{report}");
            if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("check-symbols: {error}");
            ExitCode::from(2)
        }
    }
}
