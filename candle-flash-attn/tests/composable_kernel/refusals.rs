//! Tests of invalid folders, each in a separate process, because a process reads the folder only once.
use std::fs;
use std::path::Path;
use std::process::Command;

use candle::{DType, Device, Result, Tensor};
use candle_flash_attn::ck::interface::{Built, Manifest, INTERFACE, MANIFEST};
use candle_flash_attn::ck::{choose, Choice, Instance, FOLDER_VARIABLE};
use candle_flash_attn::flash_attn;
use sha2::{Digest, Sha256};

/// Environment variable that makes a process of this test run the call, with the choice of kernels as its value.
const CALL: &str = "CK_TEST_CALLS_WITH";
const OBJECT: &str = "f16-64-dense-masked.hsaco";

/// Fills a folder with an object of `bytes` for gfx90a and a modified manifest.
fn fill(folder: &Path, bytes: &[u8], change: fn(&mut Manifest)) {
    let below = folder.join("gfx90a");
    fs::create_dir_all(&below).unwrap();
    let mut manifest = Manifest {
        interface: INTERFACE,
        arch: "gfx90a".into(),
        instances: Instance::all()
            .take(1)
            .map(|instance| Built {
                instance,
                file: OBJECT.into(),
                sha256: Sha256::digest(b"code").iter().map(|byte| format!("{byte:02x}")).collect(),
                argument_bytes: instance.layout().bytes,
            })
            .collect(),
        ..Manifest::default()
    };
    change(&mut manifest);
    fs::write(below.join(OBJECT), bytes).unwrap();
    fs::write(below.join(MANIFEST), serde_json::to_string(&manifest).unwrap()).unwrap();
}

/// Makes a causal call that the instance supports, in the separate process.
fn call(choice: &str) -> Result<Tensor> {
    choose(if choice == "ck" { Choice::ComposableKernel } else { Choice::Table });
    let device = Device::new_rocm(0)?;
    let x = Tensor::from_vec(vec![0f32; 128], (1, 2, 1, 64), &Device::Cpu)?
        .to_dtype(DType::F16)?
        .to_device(&device)?;
    flash_attn(&x, &x, &x, 1.0, true)
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    if let Ok(choice) = std::env::var(CALL) {
        println!("error: {}", call(&choice).map(|_| "nothing").unwrap_err());
        return;
    }
    let keep: fn(&mut Manifest) = |_| ();
    let whole = Path::new("gfx90a").join(OBJECT).display().to_string();
    let manifest = Path::new("gfx90a").join(MANIFEST).display().to_string();
    // Contents of the file, change of the manifest, choice of kernels, and parts of the error.
    type Wrong<'a> = (Option<&'a [u8]>, fn(&mut Manifest), &'a str, [&'a str; 3]);
    let table: [Wrong; 7] = [
        (None, keep, "ck", [&manifest, "cannot read", "cargo xtask ck --arch gfx90a"]),
        (None, keep, "table", [&manifest, "cannot read", "cargo xtask ck --arch gfx90a"]),
        (Some(b"cod"), keep, "ck", [&whole, "SHA-256", "cargo xtask ck --arch gfx90a"]),
        (Some(b"cOde"), keep, "table", [&whole, "SHA-256", "cargo xtask ck --arch gfx90a"]),
        (Some(b"code"), |m| m.interface += 1, "ck", [&manifest, "interface 2", "1 is known here"]),
        (
            Some(b"code"),
            |m| m.arch = "gfx942".into(),
            "ck",
            [&manifest, "it is for gfx942", "the device is gfx90a"],
        ),
        // The digest matches, but the file is not a code object.
        (Some(b"code"), keep, "ck", ["f16-64-dense-masked", "no AMD code object", "rocm:0"]),
    ];
    for (bytes, change, choice, parts) in table {
        let folder = tempfile::tempdir().unwrap();
        if let Some(bytes) = bytes {
            fill(folder.path(), bytes, change);
        }
        assert_error_contains(Some(folder.path()), choice, &parts);
    }
    assert_error_contains(None, "ck", &[FOLDER_VARIABLE, "is not set", "cargo xtask ck --arch"]);
}

fn assert_error_contains(folder: Option<&Path>, choice: &str, parts: &[&str]) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "refusals::a_folder_that_cannot_be_used_is_named", "--nocapture"]);
    program.env(CALL, choice).env("CANDLE_ROCM_DRIVER", "emulator:gfx90a").env_remove(FOLDER_VARIABLE);
    if let Some(folder) = folder {
        program.env(FOLDER_VARIABLE, folder);
    }
    let output = program.output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    for part in parts {
        assert!(
            output_text.contains(part),
            "{part:?} is missing in: {output_text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
