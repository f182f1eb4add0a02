//! Tests of the native driver against a fake libamdhip64 that is built here. A driver is selected once per process, so
//! each case runs `rocm-probe` in a separate process.
mod fake;

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome = Result<(), Box<dyn Error>>;

/// The lines that the probe printed, by key.
struct Report(HashMap<String, String>);

impl Report {
    fn line(&self, key: &str) -> &str {
        self.0.get(key).map_or("(no such line)", String::as_str)
    }

    #[track_caller]
    fn has(&self, key: &str, parts: &[&str]) {
        let line = self.line(key);
        for part in parts {
            assert!(line.contains(part), "{key}: {part:?} is not in {line:?}");
        }
    }
}

/// Runs the probe with only the given ROCm variables. It must exit successfully.
fn probe(variables: &[(&str, &str)]) -> Result<Report, Box<dyn Error>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocm-probe"));
    for name in [
        "CANDLE_ROCM_DRIVER",
        "ROCM_PATH",
        "LD_LIBRARY_PATH",
        "HSA_OVERRIDE_GFX_VERSION",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ROCBLAS_TENSILE_LIBPATH",
    ] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output()?;
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    Ok(Report(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()))
}

/// Builds the fake library as ROOT/lib/NAME.
fn build(root: &Path, name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let folder = root.join("lib");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(name);
    fake::build("amdhip64.rs", &file)?;
    Ok(file)
}

#[test]
fn calls_are_forwarded_and_missing_functions_are_errors() -> Outcome {
    let root = tempfile::tempdir()?;
    let file = build(root.path(), "libamdhip64.so.7")?;
    let path = root.path().to_string_lossy();
    let report = probe(&[("CANDLE_ROCM_DRIVER", "native"), ("ROCM_PATH", &path), ("FAKE_DEVICES", "2")])?;
    report.has("driver", &["native", "HIP runtime", &file.to_string_lossy()]);
    assert_eq!(report.line("hip runtime"), "Some(70123456)");
    assert_eq!(report.line("hip driver"), "Some(70123457)");
    assert_eq!(report.line("devices"), r#"["gfx1100", "gfx90a:sramecc+:xnack-"]"#);
    assert_eq!(report.line("count"), "ok 2");
    assert_eq!(report.line("memory"), "ok 1024");
    // An error of the library itself keeps its code and text, and the loader adds nothing.
    assert_eq!(report.line("oversize"), "HIP error 2: hipErrorOutOfMemory - fake error text []");
    // Functions that the library lacks.
    report.has("init", &["HIP error 302", "has no function hipInit", &file.to_string_lossy()]);
    report.has("stream", &["HIP error 302", "has no function hipStreamCreate"]);
    report.has("module", &["HIP error 302", "has no function hipModuleLoadData"]);
    // The library is missing, unless this machine has a real one.
    if report.line("rocblas") != "ok ()" {
        report.has("rocblas", &["rocBLAS status 6", "librocblas.so", "cannot be used", "librocblas4"]);
    }
    if report.line("hipblaslt") != "ok ()" {
        let expected = ["hipBLASLt status 1", "libhipblaslt.so", "cannot be used", "It is optional"];
        report.has("hipblaslt", &expected);
        assert_eq!(report.line("hipblaslt version"), "None");
    }
    Ok(())
}

#[test]
fn missing_tensile_files_are_reported_before_a_product() -> Outcome {
    let root = tempfile::tempdir()?;
    build(root.path(), "libamdhip64.so.7")?;
    build(root.path(), "librocblas.so.5")?;
    let files = root.path().join("lib/rocblas/library");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("TensileLibrary_lazy_gfx90a.dat"), "")?;
    let path = root.path().to_string_lossy().into_owned();
    let variables = [("CANDLE_ROCM_DRIVER", "native"), ("ROCM_PATH", path.as_str()), ("FAKE_DEVICES", "2")];
    let report = probe(&variables)?;
    let folder = files.to_string_lossy();
    report.has("tensile gfx1100", &["no Tensile files for gfx1100", &folder, "present for: gfx90a"]);
    assert_eq!(report.line("tensile gfx90a:sramecc+:xnack-"), format!("ok Some({files:?})"));
    // The variable replaces the folder next to the library.
    let other = root.path().join("other");
    std::fs::create_dir(&other)?;
    std::fs::write(other.join("Kernels.so-000-gfx1100.hsaco"), "")?;
    let other_path = other.to_string_lossy();
    let with_folder = [variables.as_slice(), &[("ROCBLAS_TENSILE_LIBPATH", &other_path)]].concat();
    let report = probe(&with_folder)?;
    assert_eq!(report.line("tensile gfx1100"), format!("ok Some({other:?})"));
    report.has("tensile gfx90a:sramecc+:xnack-", &["no Tensile files for gfx90a", &other_path]);
    Ok(())
}

#[test]
fn rocm_7_is_preferred_to_rocm_6() -> Outcome {
    let root = tempfile::tempdir()?;
    let seven = build(root.path(), "libamdhip64.so.7")?;
    let six = root.path().join("lib/libamdhip64.so.6");
    std::fs::rename(&seven, &six)?;
    let path = root.path().to_string_lossy().into_owned();
    let variables = [("CANDLE_ROCM_DRIVER", "native"), ("ROCM_PATH", path.as_str()), ("FAKE_DEVICES", "1")];
    probe(&variables)?.has("driver", &["libamdhip64.so.6"]);
    std::fs::copy(&six, &seven)?;
    probe(&variables)?.has("driver", &["libamdhip64.so.7"]);
    Ok(())
}

#[test]
fn rocm_without_a_gpu_reports_variables_that_may_hide_it() -> Outcome {
    let root = tempfile::tempdir()?;
    build(root.path(), "libamdhip64.so.6")?;
    let path = root.path().to_string_lossy();
    let report = probe(&[
        ("CANDLE_ROCM_DRIVER", "native"),
        ("ROCM_PATH", &path),
        ("HSA_OVERRIDE_GFX_VERSION", ""),
        ("ROCR_VISIBLE_DEVICES", "7"),
    ])?;
    report.has("driver", &["native"]);
    report.has("devices", &["reports no usable GPU (hipGetDeviceCount, HIP error 100)", "libamdhip64.so.6"]);
    report.has("devices", &["HSA_OVERRIDE_GFX_VERSION is set but empty", r#"ROCR_VISIBLE_DEVICES="7""#]);
    report.has("count", &["HIP error 100"]);
    Ok(())
}

#[test]
fn the_error_names_a_file_that_is_not_a_library() -> Outcome {
    let root = tempfile::tempdir()?;
    std::fs::create_dir_all(root.path().join("lib"))?;
    let file = root.path().join("lib/libamdhip64.so.7");
    std::fs::write(&file, "not an ELF file at all")?;
    let path = root.path().to_string_lossy();
    let report = probe(&[("CANDLE_ROCM_DRIVER", "native"), ("ROCM_PATH", &path)])?;
    if !report.line("driver").contains("native: ") {
        report.has("driver", &["cannot be used", &file.to_string_lossy()]);
        report.has("count", &["HIP error 303", &file.to_string_lossy()]);
    }
    Ok(())
}

#[test]
fn the_error_for_an_unknown_driver_lists_the_known_ones() -> Outcome {
    let report = probe(&[("CANDLE_ROCM_DRIVER", "cuda")])?;
    assert_eq!(report.line("available"), "false");
    for key in ["driver", "devices", "count", "rocblas"] {
        report.has(key, &[r#"CANDLE_ROCM_DRIVER="cuda""#, "`native`", "`emulator`"]);
    }
    report.has("count", &["HIP error 1:"]);
    Ok(())
}

#[test]
fn without_a_gpu_no_driver_is_selected_by_default() -> Outcome {
    if Path::new("/dev/kfd").exists() || Path::new("/dev/dxg").exists() {
        return Ok(()); // this machine may have a GPU, for which native is selected
    }
    let report = probe(&[])?;
    assert_eq!(report.line("available"), "false");
    for key in ["driver", "devices", "count", "memory", "stream", "module"] {
        report.has(
            key,
            &[
                "no AMD GPU was found",
                "/dev/kfd",
                "To use another driver, set CANDLE_ROCM_DRIVER",
                "`emulator`",
            ],
        );
    }
    report.has("count", &["HIP error 100"]);
    Ok(())
}

#[test]
fn the_error_for_a_driver_that_is_not_compiled_in_names_its_feature() -> Outcome {
    for (name, is_built) in [("emulator", cfg!(feature = "emulator")), ("nvidia", cfg!(feature = "nvidia"))] {
        if is_built {
            continue;
        }
        let report = probe(&[("CANDLE_ROCM_DRIVER", name)])?;
        assert_eq!(report.line("available"), "false");
        let feature = format!("the feature `rocm-{name}` of candle-core (`{name}` of rocm-loader)");
        report.has("driver", &[name, "not compiled in", &feature]);
        report.has("count", &["HIP error 303"]);
        probe(&[])?.has("driver", &[&format!("not compiled in: feature `rocm-{name}`")]);
    }
    Ok(())
}

#[cfg(feature = "emulator")]
#[test]
fn the_software_gpu_serves_the_same_calls() -> Outcome {
    let report = probe(&[("CANDLE_ROCM_DRIVER", "emulator:gfx1100,gfx1100")])?;
    assert_eq!(report.line("available"), "true");
    report.has("driver", &["emulator", "software GPU (gfx1100, gfx1100)"]);
    assert_eq!(report.line("devices"), r#"["gfx1100", "gfx1100"]"#);
    assert_eq!(report.line("count"), "ok 2");
    assert_eq!(report.line("memory"), "ok 1024");
    assert_eq!(report.line("stream"), "ok ()");
    assert_eq!(report.line("rocblas"), "ok ()");
    assert_eq!((report.line("hipblaslt"), report.line("hipblaslt version")), ("ok ()", "Some(1200)"));
    report.has("oversize", &["HIP error 2", "hipMalloc"]);
    report.has("module", &["HIP error 200"]);
    assert_eq!(report.line("miopen"), "ok ()");
    assert_eq!(report.line("rccl version"), "Some(22100)");
    let report = probe(&[("CANDLE_ROCM_DRIVER", "emulator"), ("CANDLE_ROCM_EMULATOR", "hipblaslt=absent")])?;
    report.has("hipblaslt", &["hipBLASLt status 1", "hipblasLtCreate: hipBLASLt is absent"]);
    assert_eq!((report.line("hipblaslt version"), report.line("rocblas")), ("None", "ok ()"));
    let report = probe(&[("CANDLE_ROCM_DRIVER", "emulator:gfx000")])?;
    report.has("driver", &["gfx000", "gfx1100"]);
    report.has("count", &["HIP error 303"]);
    Ok(())
}
