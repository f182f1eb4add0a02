//! Runs validations of packs whose programs are shell scripts.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

const DOCTOR: &str = r#"echo '{"gpus": [{"name": "a card", "arch": "gfx1100"}], "advice": "all is well"}'"#;
const FAILING: &str = r#"echo "test a ... ok
test b ... FAILED
test c ... ok

successes:

---- c stdout ----
not applicable: needs two GPUs


failures:

---- b stdout ----
thread 'b' panicked at $HOME/x.rs:1:1: host $(hostname), user $USER, driver $CANDLE_ROCM_DRIVER

test result: FAILED. 2 passed; 1 failed"; exit 101"#;

/// Writes a pack of these programs and returns its folder.
fn pack(folder: &Path, programs: &[(&str, &str)]) -> PathBuf {
    let root = folder.join("pack");
    for (key, script) in programs {
        let path = root.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let names: Vec<&str> = programs.iter().map(|(key, _)| *key).collect();
    fs::write(root.join(artifacts::MANIFEST), json!({"programs": names, "built": {}}).to_string()).unwrap();
    root
}

/// Runs a validation. Returns whether all stages succeeded, and the report.
fn run_packed(folder: &Path, words: &[&str], programs: &[(&str, &str)]) -> (bool, Value) {
    let root = pack(folder, programs);
    let mut args = arguments(words).unwrap();
    args.packed = Some(root);
    args.out = folder.join("out");
    let good = validate(&args, None).unwrap();
    let text = fs::read_to_string(folder.join("out").join(report::JSON)).unwrap();
    (good, serde_json::from_str(&text).unwrap())
}

#[test]
fn a_failing_stage_is_reported_without_private_data_and_the_others_run() {
    let folder = tempfile::tempdir().unwrap();
    let only = ["--only", "memory", "--only", "training", "--only", "stress", "--only", "fuzz"];
    let programs = [
        ("examples/doctor", DOCTOR),
        ("deps/memory", FAILING),
        ("deps/training", "echo 'test d ... ok'; echo 'test result: ok. 1 passed'"),
        ("examples/stress", "echo 'stress: ok iterations=1'"),
    ];
    let (good, report) = run_packed(folder.path(), &only, &programs);
    assert!(!good);
    let stages: Vec<(&str, &str)> = report["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| (stage["name"].as_str().unwrap(), stage["status"].as_str().unwrap()))
        .collect();
    let expected = [("memory", "FAILED"), ("training", "ok"), ("stress", "ok"), ("fuzz", "not applicable")];
    assert_eq!(stages, expected);
    let memory = &report["stages"][0];
    assert_eq!(
        (&memory["passed"], &memory["failed"], &memory["not_applicable"]),
        (&json!(1), &json!(1), &json!(1))
    );
    // The driver is set for every program, so that none falls back to the software GPU.
    let log = fs::read_to_string(folder.path().join("out/logs/memory.txt")).unwrap();
    assert!(log.contains("driver native"), "{log}");
    let text = fs::read_to_string(folder.path().join("out").join(report::TEXT)).unwrap();
    let place = folder.path().display().to_string();
    for written in [log, text, report.to_string()] {
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
        assert!(!written.contains(&place) && !written.contains(&format!("{home}/")), "{written}");
    }
}

#[test]
fn without_a_gpu_only_the_doctor_runs() {
    let folder = tempfile::tempdir().unwrap();
    let programs = [
        ("examples/doctor", r#"echo '{"gpus": [], "advice": "install ROCm"}'; exit 1"#),
        ("deps/memory", "touch ran; echo 'test result: ok.'"),
    ];
    let (good, report) = run_packed(folder.path(), &["--only", "doctor", "--only", "memory"], &programs);
    assert!(!good && !folder.path().join("out/ran").exists());
    assert!(report.to_string().contains("install ROCm") && report.to_string().contains("no GPU was found"));
}

#[test]
fn a_folder_with_other_files_is_rejected_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.txt"), "words").unwrap();
    assert!(prepare_output_folder(folder.path()).is_err());
    assert!(folder.path().join("thesis.txt").is_file());
    assert!(arguments(&["--only", "nothing"]).is_err());
}

#[test]
fn the_report_names_each_constant_of_the_time_model_as_assumed_published_or_measured() {
    let folder = tempfile::tempdir().unwrap();
    let bench = r#"echo '{"results": [{"case": "device_copy", "us": 10.0, "bytes": 9000000}]}' > "$6""#;
    let programs = [("examples/doctor", DOCTOR), ("deps/operations", bench)];
    let (good, report) = run_packed(folder.path(), &["--only", "doctor", "--only", "benches"], &programs);
    assert!(good, "{report}");
    let text = fs::read_to_string(folder.path().join("out").join(report::TEXT)).unwrap();
    assert!(text.contains("## Model constants of RX 7900 XTX"), "{text}");
    assert!(text.contains("| l2_latency | 110 | assumed | - |"), "{text}");
    assert!(text.contains("| memory_rate | 732 | origami | 900 |"), "{text}");
}
