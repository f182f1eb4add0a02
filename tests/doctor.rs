//! What the doctor says of machines of all kinds: the built example, in a process of its own for each.
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The example on a machine that these variables describe.
fn doctor(args: &[&str], envs: &[(&str, &str)]) -> Output {
    let test = std::env::current_exe().expect("own path");
    let folder: PathBuf = test.ancestors().nth(2).expect("target folder").into();
    let mut command = Command::new(folder.join("examples/doctor"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["HIP_", "HSA_", "ROC", "AMD_", "CUDA_", "GPU_", "MIOPEN_", "CANDLE_ROCM_"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            command.env_remove(name);
        }
    }
    command.args(args).envs(envs.iter().copied()).output().expect("the example is built by cargo test")
}

fn text(envs: &[(&str, &str)]) -> (bool, String) {
    let output = doctor(&[], envs);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.success(), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn json(envs: &[(&str, &str)]) -> Value {
    let output = doctor(&["--json"], envs);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["healthy"], output.status.success());
    // Without opening anything, as the report that opens everything.
    assert_eq!(report["available"], report["driver"].is_string());
    report
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

const DRIVER: &str = "CANDLE_ROCM_DRIVER";

#[test]
fn no_driver_is_said_with_what_to_do() {
    let nowhere = tempfile::tempdir().expect("a folder");
    let path = nowhere.path().to_string_lossy().into_owned();
    let envs = [(DRIVER, "native"), ("ROCM_PATH", path.as_str()), ("LD_LIBRARY_PATH", path.as_str())];
    let (healthy, said) = text(&envs);
    if healthy {
        // A machine with ROCm in the system's folders and a GPU has nothing to say here.
        return;
    }
    has(&said, &["driver     none", "advice"]);
    let report = json(&envs);
    assert!(report["driver"].is_null() && report["missing"].is_string());
    assert_eq!(report["gpus"], Value::Array(Vec::new()));
    assert_eq!(report["default_ordinal"], Value::Null);
    assert_eq!(report["advice"], report["missing"]);
}

#[test]
fn an_unknown_driver_is_named() {
    let (healthy, said) = text(&[(DRIVER, "cuda")]);
    assert!(!healthy);
    has(&said, &["driver     none", "cuda", "`native`"]);
}

#[test]
fn every_gpu_computes_and_is_described() {
    let (healthy, said) = text(&[(DRIVER, "emulator:gfx1100")]);
    assert!(healthy, "{said}");
    has(
        &said,
        &["software GPU (gfx1100)", "discrete, the default", "16.00 GiB", "those for gfx1100", "computes"],
    );
    has(&said, &["advice     all is well: rocm:0 is a software GPU"]);
    let report = json(&[(DRIVER, "emulator:gfx1100,gfx1100")]);
    let gpus = report["gpus"].as_array().expect("a list");
    assert_eq!(gpus.len(), 2);
    for (ordinal, gpu) in gpus.iter().enumerate() {
        assert_eq!((&gpu["ordinal"], &gpu["arch"]), (&ordinal.into(), &"gfx1100".into()));
        assert_eq!((&gpu["trial"], &gpu["code_object"]), (&"computes".into(), &"gfx1100".into()));
        assert_eq!((&gpu["total_memory"], &gpu["integrated"]), (&(16u64 << 30).into(), &false.into()));
    }
}

#[test]
fn the_discrete_gpu_is_the_default_and_numbers_stay_hips() {
    let report = json(&[(DRIVER, "emulator:gfx1103,gfx1100")]);
    assert_eq!(report["default_ordinal"], 1);
    let gpus = report["gpus"].as_array().expect("a list");
    let integrated: Vec<_> = gpus.iter().map(|gpu| gpu["integrated"].as_bool()).collect();
    assert_eq!(integrated, [Some(true), Some(false)]);
    assert_eq!(json(&[(DRIVER, "emulator:gfx1103")])["default_ordinal"], 0);
    // Hidden GPUs are not there, and the rest is numbered anew.
    let hidden = json(&[(DRIVER, "emulator:gfx1103,gfx1100"), ("HIP_VISIBLE_DEVICES", "1")]);
    assert_eq!((&hidden["default_ordinal"], hidden["gpus"].as_array().map(Vec::len)), (&0.into(), Some(1)));
}

#[test]
fn an_arch_that_nothing_fits_is_named_with_how_to_build_for_it() {
    // No test builds kernels for it, and no other target's fit it.
    let (healthy, said) = text(&[(DRIVER, "emulator:gfx908")]);
    if healthy {
        return assert!(hip_kernels::archs().contains(&"gfx908"));
    }
    has(&said, &["kernels  none in this binary", "CANDLE_ROCM_ARCHS=gfx908"]);
    let report = json(&[(DRIVER, "emulator:gfx908")]);
    assert!(report["gpus"][0]["code_object"].is_null() && report["gpus"][0]["trial"].is_null());
}

#[test]
fn variables_that_harm_are_said_first() {
    let device = (DRIVER, "emulator:gfx1100");
    for (name, value, harm) in [
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", "wrong results"),
        ("HIP_LAUNCH_BLOCKING", "1", "slow"),
        ("HSA_XNACK", "1", "xnack-"),
        ("AMD_LOG_LEVEL", "4", "logged"),
    ] {
        let (_, said) = text(&[device, (name, value)]);
        has(&said, &[&format!("variable   {name}={value}"), harm]);
        let advice = said.lines().last().expect("a line");
        assert!(advice.contains(name), "{advice}");
    }
    let report = json(&[device, ("HIP_LAUNCH_BLOCKING", "0")]);
    assert!(report["advice"].as_str().is_some_and(|advice| advice.contains("all is well")), "{report}");
}

#[test]
fn a_gpu_that_does_not_work_is_said_with_the_reason() {
    let broken = [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "fail=hipModuleLaunchKernel:1")];
    let (healthy, said) = text(&broken);
    assert!(!healthy);
    has(&said, &["rocm:0 does not work", "hipModuleLaunchKernel"]);
    let stuck =
        [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "stall=1"), ("CANDLE_ROCM_DEADLINE", "0.1")];
    let (healthy, said) = text(&stuck);
    assert!(!healthy);
    has(&said, &["rocm:0 does not work", "has not finished after 0.1"]);
}
