//! Copies between two GPUs without peer access: data is copied through the host, but only if the driver returns the
//! corresponding error. The software GPU always has peer access, so the test builds a mock driver and needs rustc.
#![cfg(all(unix, feature = "rocm-emulator"))]

use candle_core::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use candle_core::{Device, Tensor};
use std::path::{Path, PathBuf};
use std::process::Command;

const CODE_VARIABLE: &str = "APART_PEER_CODE";

/// hipErrorPeerAccessUnsupported and hipErrorPeerAccessNotEnabled.
const APART: [u32; 2] = [217, 705];
/// hipErrorInvalidValue, hipErrorOutOfMemory, hipErrorPeerAccessAlreadyEnabled, hipErrorLaunchFailure and
/// hipErrorUnknown.
const OTHERS: [u32; 5] = [1, 2, 704, 719, 999];

/// Builds the mock driver in a folder with ROCm's layout and returns the folder.
fn driver() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apart");
    std::fs::create_dir_all(root.join("lib")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apart/amdhip64.rs");
    let status = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=1", "-Cpanic=abort", "-o"])
        .args([&root.join("lib/libamdhip64.so.7"), &source])
        .status()
        .unwrap();
    assert!(status.success(), "rustc: {status}");
    root
}

#[test]
fn data_is_copied_through_the_host_only_without_peer_access() {
    let root = driver();
    for (test, codes) in [("through_the_host", &APART[..]), ("an_error", &OTHERS)] {
        for code in codes {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", test, "--nocapture"])
                .env("ROCM_PATH", &root)
                .env(DRIVER_VARIABLE, "native")
                .env(CODE_VARIABLE, code.to_string())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let passed = output.status.success() && text.contains("1 passed");
            assert!(passed, "{test} with code {code}: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

fn calls(name: &str) -> u64 {
    rocm_loader::symbols::calls().find(|(called, _)| *called == name).map_or(0, |(_, count)| count)
}

/// Returns a tensor on the first GPU, and the second GPU.
fn tensor_and_second_gpu(bytes: &[u8]) -> (Tensor, Device) {
    let [here, there] = [0, 1].map(|ordinal| Device::new_rocm(ordinal).unwrap());
    (Tensor::from_slice(bytes, bytes.len(), &here).unwrap(), there)
}

#[test]
#[ignore = "run by data_is_copied_through_the_host_only_without_peer_access"]
fn through_the_host() {
    // Smaller and larger than a chunk of the upload ring.
    for len in [1, 1000, (4 << 20) + 5] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let (x, there) = tensor_and_second_gpu(&bytes);
        let before = calls("hipMemcpyPeerAsync");
        let copy = x.to_device(&there).unwrap();
        assert_eq!(calls("hipMemcpyPeerAsync"), before + 1);
        assert!(copy.device().same_device(&there));
        assert!(copy.to_vec1::<u8>().unwrap() == bytes, "{len} bytes");
    }
}

#[test]
#[ignore = "run by data_is_copied_through_the_host_only_without_peer_access"]
fn an_error() {
    let bytes = [1u8, 2, 3];
    let (x, there) = tensor_and_second_gpu(&bytes);
    let copies = calls("hipMemcpyAsync");
    let text = x.to_device(&there).unwrap_err().to_string();
    let code = std::env::var(CODE_VARIABLE).unwrap();
    for part in ["hipMemcpyPeerAsync(3 B from rocm:0", "rocm:1", &format!("HIP error {code}")] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(calls("hipMemcpyAsync"), copies, "the data was copied through the host");
    assert_eq!(x.to_vec1::<u8>().unwrap(), bytes);
}
