//! Tests of the profile that a process writes.
use crate::result;
use std::path::{Path, PathBuf};

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rocm-emulator-{name}-{}.json", std::process::id())))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(file: &Path, further: &str) -> String {
    result("profiled", &[("CANDLE_ROCM_EMULATOR", &format!("profile={}{further}", file.display()))])
}

/// Expected JSON of a kernel: two launches of three workgroups with one wave each.
const BANKS: &str = r#"{"name": "banks",
  "arch": "gfx1100",
  "resources": {"wave_size": 32, "vgprs": 5, "agprs": 0, "sgprs": 4, "lds_bytes": 8192, "private_bytes": 0},
  "launches": 2,
  "workgroups": 6,
  "waves": 6,"#;

#[test]
fn a_process_writes_the_profile_of_its_kernels() {
    let file = File::new("profile");
    assert_eq!(run(&file.0, ""), "done");
    let text = file.text();
    assert!(text.contains(BANKS), "{text}");
    // Stride 2: each load has one conflict in every bank.
    assert!(text.contains(r#""lds": {"accesses": 12, "steps": 12, "bank_conflicts": 6}"#), "{text}");
    // 32 lanes load a line of 128 bytes each and store to one line.
    assert!(
        text.contains(
            r#""coalescing": {"accesses": 2, "bytes": 256, "lines_64": 34, "min_lines_64": 4, "lines_128": 33, "min_lines_128": 2, "lines_loaded": 32, "lines_stored": 1}"#
        ),
        "{text}"
    );
    // Launched last, without a wait.
    assert!(text.contains(r#""name": "part_of_the_lanes""#), "{text}");
    assert!(text.contains(
        r#""divergence": {"lanes": 256, "active_lanes": 208, "branches": 1, "splits": 1, "barriers": 0}"#
    ));
    // Sorted by name, and identical in two runs.
    let places: Vec<usize> =
        ["banks", "part_of", "strided"].iter().map(|name| text.find(&format!("\"{name}")).unwrap()).collect();
    assert!(places.is_sorted());
    let again = File::new("profile-again");
    run(&again.0, ";threads=2");
    assert_eq!(again.text(), text);
}

#[test]
fn take_profile_resets_the_profile() {
    let file = File::new("taken");
    let setting = format!("profile={}", file.0.display());
    let kernel = |name, launches| format!("{{\"name\": \"{name}\",  \"launches\": {launches},");
    let taken = format!("{}|{}|", kernel("banks", 1), kernel("part_of_the_lanes", 2));
    assert_eq!(result("profile taken", &[("CANDLE_ROCM_EMULATOR", &setting)]), taken);
    assert_eq!(file.text(), "{\"format\": 1, \"kernels\": []}\n");
    assert_eq!(result("profile taken", &[]), "none|none|none");
}

#[test]
fn launches_without_a_wait_are_counted() {
    let file = File::new("end");
    let setting = format!("profile={}", file.0.display());
    assert_eq!(result("ends at once", &[("CANDLE_ROCM_EMULATOR", &setting)]), "done");
    let text = file.text();
    assert!(text.contains(r#""launches": 201,"#), "{text}");
}

#[test]
fn a_seed_affects_only_launches_without_a_wait() {
    let (plain, seeded) = (File::new("plain"), File::new("seeded"));
    run(&plain.0, "");
    run(&seeded.0, ";seed=1");
    let (plain, seeded) = (plain.text(), seeded.text());
    let of_banks =
        |text: &str| text[text.find(BANKS).unwrap()..text.find("part_of").unwrap_or(text.len())].len();
    assert!(of_banks(&plain) > BANKS.len());
    let object = |text: &str| {
        let from = text.find(r#"{"name": "strided""#).unwrap();
        text[from..].to_owned()
    };
    assert_eq!(object(&plain), object(&seeded));
}

#[test]
fn an_unwritable_file_is_reported_at_the_start() {
    let nowhere = std::env::temp_dir().join("no such folder").join("p.json");
    let setting = format!("profile={}", nowhere.display());
    let text = result("configure", &[("CANDLE_ROCM_EMULATOR", &setting)]);
    assert!(text.contains("no such folder") && text.contains("profile"), "{text}");
}
