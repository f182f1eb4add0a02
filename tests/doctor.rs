//! Tests the reports of the example `doctor` for different machines, each in a separate process.
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the example with environment variables that simulate a machine.
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
    // `available` opens no device, and must agree with the driver that the full report finds.
    assert_eq!(report["available"], report["driver"].is_string());
    report
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

const DRIVER: &str = "CANDLE_ROCM_DRIVER";

#[test]
fn a_missing_driver_is_reported_with_advice() {
    let empty_folder = tempfile::tempdir().expect("a folder");
    let path = empty_folder.path().to_string_lossy().into_owned();
    let envs = [(DRIVER, "native"), ("ROCM_PATH", path.as_str()), ("LD_LIBRARY_PATH", path.as_str())];
    let (healthy, report_text) = text(&envs);
    if healthy {
        // Not applicable on a machine with a GPU and ROCm in the system's folders.
        return;
    }
    assert_contains(&report_text, &["driver     none", "advice"]);
    let report = json(&envs);
    assert!(report["driver"].is_null() && report["missing"].is_string());
    assert_eq!(report["gpus"], Value::Array(Vec::new()));
    assert_eq!(report["default_ordinal"], Value::Null);
    assert_eq!(report["advice"], report["missing"]);
}

#[test]
fn an_unknown_driver_is_reported() {
    let (healthy, report_text) = text(&[(DRIVER, "cuda")]);
    assert!(!healthy);
    assert_contains(&report_text, &["driver     none", "cuda", "`native`"]);
}

#[test]
fn every_gpu_is_tested_and_described() {
    let (healthy, report_text) = text(&[(DRIVER, "emulator:gfx1100")]);
    assert!(healthy, "{report_text}");
    assert_contains(
        &report_text,
        &["software GPU (gfx1100)", "discrete, the default", "16.00 GiB", "those for gfx1100", "passed"],
    );
    assert_contains(&report_text, &["advice     all is well: rocm:0 is a software GPU"]);
    let report = json(&[(DRIVER, "emulator:gfx1100,gfx1100")]);
    let gpus = report["gpus"].as_array().expect("a list");
    assert_eq!(gpus.len(), 2);
    for (ordinal, gpu) in gpus.iter().enumerate() {
        assert_eq!((&gpu["ordinal"], &gpu["arch"]), (&ordinal.into(), &"gfx1100".into()));
        assert_eq!((&gpu["self_test"], &gpu["code_object"]), (&"passed".into(), &"gfx1100".into()));
        assert_eq!((&gpu["total_memory"], &gpu["integrated"]), (&(16u64 << 30).into(), &false.into()));
    }
}

#[test]
fn the_discrete_gpu_is_the_default_and_ordinals_are_those_of_hip() {
    let report = json(&[(DRIVER, "emulator:gfx1103,gfx1100")]);
    assert_eq!(report["default_ordinal"], 1);
    let gpus = report["gpus"].as_array().expect("a list");
    let integrated: Vec<_> = gpus.iter().map(|gpu| gpu["integrated"].as_bool()).collect();
    assert_eq!(integrated, [Some(true), Some(false)]);
    assert_eq!(json(&[(DRIVER, "emulator:gfx1103")])["default_ordinal"], 0);
    // HIP removes hidden GPUs and renumbers the rest.
    let hidden = json(&[(DRIVER, "emulator:gfx1103,gfx1100"), ("HIP_VISIBLE_DEVICES", "1")]);
    assert_eq!((&hidden["default_ordinal"], hidden["gpus"].as_array().map(Vec::len)), (&0.into(), Some(1)));
}

#[test]
fn an_arch_without_kernels_is_reported_with_the_build_variable() {
    // Tests do not build kernels for this target, and kernels of other targets do not run on it.
    let (healthy, report_text) = text(&[(DRIVER, "emulator:gfx908")]);
    if healthy {
        return assert!(hip_kernels::archs().contains(&"gfx908"));
    }
    assert_contains(&report_text, &["kernels  none in this binary", "CANDLE_ROCM_ARCHS=gfx908"]);
    let report = json(&[(DRIVER, "emulator:gfx908")]);
    assert!(report["gpus"][0]["code_object"].is_null() && report["gpus"][0]["self_test"].is_null());
}

#[test]
fn a_generic_code_object_serves_if_hip_refuses_the_exact_one() {
    let targets = hip_kernels::fitting_targets("gfx1100", hip_kernels::archs());
    let envs = |options| [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", options)];
    if let ["gfx1100"] = targets[..] {
        let (healthy, report) = text(&envs("refuse=gfx1100"));
        assert!(!healthy, "{report}");
        return assert_contains(&report, &["hipModuleLoadData(", "for gfx1100", "CANDLE_ROCM_ARCHS"]);
    }
    if targets.len() < 2 {
        return eprintln!("not run: the kernels were built without gfx1100 (CANDLE_ROCM_ARCHS)");
    }
    for (options, code_object, refused) in [
        ("refuse=gfx1100", "gfx11-generic", Some("gfx1100: HIP error 209")),
        ("refuse=gfx11-generic", "gfx1100", None),
    ] {
        let gpu = &json(&envs(options))["gpus"][0];
        assert_eq!((&gpu["self_test"], &gpu["code_object"]), (&"passed".into(), &code_object.into()));
        let begins = |text: &str| refused.is_some_and(|refused| text.starts_with(refused));
        assert!(gpu["refused"].as_str().map_or(refused.is_none(), begins), "{gpu}");
    }
}

#[test]
fn harmful_variables_are_reported_first() {
    let device = (DRIVER, "emulator:gfx1100");
    for (name, value, harm) in [
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", "wrong results"),
        ("HIP_LAUNCH_BLOCKING", "1", "slow"),
        ("HSA_XNACK", "1", "xnack-"),
        ("AMD_LOG_LEVEL", "4", "logged"),
    ] {
        let (_, report_text) = text(&[device, (name, value)]);
        assert_contains(&report_text, &[&format!("variable   {name}={value}"), harm]);
        let advice = report_text.lines().last().expect("a line");
        assert!(advice.contains(name), "{advice}");
    }
    let report = json(&[device, ("HIP_LAUNCH_BLOCKING", "0")]);
    assert!(report["advice"].as_str().is_some_and(|advice| advice.contains("all is well")), "{report}");
}

#[test]
fn a_miopen_that_cannot_compile_is_reported() {
    let broken = [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "miopen=broken")];
    let (healthy, report_text) = text(&broken);
    assert!(healthy, "{report_text}");
    assert_contains(
        &report_text,
        &["  problem  2 solutions of MIOpen failed", "advice     2 solutions of MIOpen"],
    );
    let absent = [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "miopen=absent")];
    assert_contains(&text(&absent).1, &["advice     all is well"]);
}

#[test]
fn memory_pools_and_known_problems_of_the_machine_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let gpu = "sys/bus/pci/devices/ffff:00:00.0";
    for (name, content) in [
        (&*format!("{gpu}/mem_info_vram_total"), "536870912\n"),
        (&*format!("{gpu}/mem_info_vram_used"), "134217728\n"),
        (&*format!("{gpu}/mem_info_gtt_total"), "12884901888\n"),
        (&*format!("{gpu}/mem_info_gtt_used"), "2147483648\n"),
        (&*format!("{gpu}/fw_version/mes_fw_version"), "0x00000083\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"),
    ] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }
    let options = format!("system={}", folder.path().display());
    let machine = [(DRIVER, "emulator:gfx1151"), ("CANDLE_ROCM_EMULATOR", options.as_str())];
    let (_, report_text) = text(&machine);
    let memory =
        ["8.00 GiB free of 16.00 GiB", "VRAM: 0.38 GiB free of 0.50 GiB", "GTT: 10.00 GiB free of 12.00 GiB"];
    assert_contains(&report_text, &memory);
    assert_contains(
        &report_text,
        &["RAM: 8.00 GiB free of 16.00 GiB", "problem    rocm:0: MES firmware 0x83"],
    );
    let report = json(&machine);
    assert_eq!(report["gpus"][0]["free_memory"], 8u64 << 30);
    assert_eq!(report["gpus"][0]["gtt"]["free"], 10u64 << 30);
    assert_eq!(report["problems"][0]["ordinal"], 0);
}

#[test]
fn a_broken_gpu_is_reported_with_the_reason() {
    let broken = [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "fail=hipModuleLaunchKernel:1")];
    let (healthy, report_text) = text(&broken);
    assert!(!healthy);
    assert_contains(&report_text, &["rocm:0 does not work", "hipModuleLaunchKernel"]);
    let stuck =
        [(DRIVER, "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", "stall=1"), ("CANDLE_ROCM_DEADLINE", "0.1")];
    let (healthy, report_text) = text(&stuck);
    assert!(!healthy);
    assert_contains(&report_text, &["rocm:0 does not work", "has not finished after 0.1"]);
}
