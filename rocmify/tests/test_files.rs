//! Rewriting of each kind of test in upstream's test files, and the numbers of tests of the real files.

use std::fs;

use rocmify::suite_rules::{Listed, Lists, Reworded, SUITES};
use rocmify::suites::{Kind, RocmTest, SuiteError, cuda_to_rocm, rocmify_suite, rocmify_suites};
use rocmify::upstream::{VERSION, locate};

fn rewritten(source: &str) -> (String, Vec<RocmTest>) {
    rocmify_suite("suite", source, &Lists::default()).unwrap()
}

fn not_twinned(tests: &[Listed]) -> Lists<'_> {
    Lists { not_twinned: tests, ..Lists::default() }
}

fn names(tests: &[RocmTest]) -> Vec<(&str, Kind, Vec<&str>)> {
    tests
        .iter()
        .map(|t| (t.name.as_str(), t.kind, t.functions.iter().map(String::as_str).collect()))
        .collect()
}

const CPU_TEST: &str = "use candle::{Device, Tensor};

fn ones(device: &Device) -> Tensor {
    Tensor::ones(2, device)
}

fn cpu_ones() -> Tensor {
    ones(&candle::Device::Cpu)
}

fn unused() -> Device {
    Device::Cpu
}

/// Adds.
#[test]
fn add() {
    let dev = &Device::Cpu;
    assert_eq!(cpu_ones() + ones(dev), 2);
}

#[test]
fn parses() {
    assert!(parse(\"Device::Cpu\"));
}
";

#[test]
fn a_test_for_the_cpu_gets_a_twin_with_the_functions_it_calls() {
    let (text, tests) = rewritten(CPU_TEST);
    let twins = "
mod on_rocm {
    use super::*;

fn cpu_ones() -> Tensor {
    ones(&crate::rocm_device())
}

/// Adds.
#[test]
fn add() {
    let dev = &crate::rocm_device();
    assert_eq!(cpu_ones() + ones(dev), 2);
}
}
";
    assert_eq!(text, format!("{CPU_TEST}{twins}"));
    assert_eq!(names(&tests), [("add", Kind::Twin, vec!["on_rocm::add"])]);
}

#[test]
fn an_imported_cpu_counts_and_a_pattern_does_not() {
    let source = "#[test]
fn blocks() {
    use candle::Device::Cpu;
    check(&Cpu);
}

fn name(device: &Device) -> u8 {
    match device {
        Device::Cpu => 1,
        _ => 2,
    }
}

#[test]
fn plain() {
    name(&Cpu::default());
}
";
    let (text, tests) = rewritten(source);
    assert!(text.contains("    use candle::Device::Cpu;\n    check(&crate::rocm_device());\n"), "{text}");
    assert!(!text[source.len()..].contains("name"), "{text}");
    assert_eq!(names(&tests), [("blocks", Kind::Twin, vec!["on_rocm::blocks"])]);
}

#[test]
fn twins_are_in_the_module_of_the_test() {
    let source = "mod tests {\n    #[test]\n    fn a() {\n        f(&Device::Cpu);\n    }\n}\n";
    let (text, tests) = rewritten(source);
    assert!(text.contains("mod on_rocm {") && text.ends_with("}\n}\n"), "{text}");
    assert_eq!(names(&tests), [("tests::a", Kind::Twin, vec!["tests::on_rocm::a"])]);
}

#[test]
fn device_macros_are_found_and_a_wrapping_macro_counts_once() {
    let source = "test_device!(add, add_cpu, add_gpu, add_metal);
macro_rules! products {
    ($f: ident, $cpu: ident) => {
        test_device!($f, $cpu, a, b);
    };
}
products!(q4, q4_cpu);
products!(q8, q8_cpu);
";
    let (text, tests) = rewritten(source);
    assert_eq!(text, source);
    assert_eq!(
        names(&tests),
        [("add", Kind::Device, vec!["add::rocm"]), ("products!", Kind::Device, vec!["q4::rocm", "q8::rocm"])]
    );
}

#[test]
fn tests_for_metal_become_tests_for_rocm() {
    let source = "#[cfg(feature = \"metal\")]
mod metal_tests {
    #[test]
    fn full() {
        go(Device::new_metal(0));
    }
}
";
    let (text, tests) = rewritten(source);
    assert_eq!(text, source.replace("metal", "rocm"));
    assert_eq!(names(&tests), [("rocm_tests::full", Kind::Metal, vec!["rocm_tests::full"])]);

    let source = "#![cfg(feature = \"metal\")]
use x::Device;

#[test]
fn a() {
    f(Device::new_metal(0));
}

#[test]
fn b() {}
";
    let alone = [Listed { suite: "suite", tests: &["b"], reason: "no b" }];
    let (text, tests) = rocmify_suite("suite", source, &not_twinned(&alone)).unwrap();
    let expected = source
        .replace("metal", "rocm")
        .replace("#[test]\nfn b", "#[cfg(feature = \"metal\")]\n#[test]\nfn b");
    assert_eq!(text, expected);
    assert_eq!(names(&tests), [("a", Kind::Metal, vec!["a"])]);
}

#[test]
fn tests_that_open_cuda_open_rocm() {
    let source = "use x::Device;

fn device() -> Device {
    Device::new_cuda(0)
}

#[test]
fn a() {
    f(device());
}
";
    let (text, tests) = cuda_to_rocm("suite", source).unwrap();
    assert_eq!(text, source.replace("cuda", "rocm"));
    assert_eq!(names(&tests), [("a", Kind::Cuda, vec!["a"])]);
}

#[test]
fn cuda_checks_are_extended_to_rocm() {
    let source = "fn f(d: &Device) {
    if d.is_cuda() || d.is_metal() {
        match d {
            Device::Cuda(_) => a(),
            Device::Cpu => b(),
        }
    }
}
";
    let (text, _) = rewritten(source);
    assert!(text.contains("if (d.is_cuda() || d.is_rocm()) || d.is_metal() {"), "{text}");
    assert!(
        text.contains("            Device::Cuda(_) => a(),\n            Device::Rocm(_) => a(),\n"),
        "{text}"
    );
}

#[test]
fn crate_paths_start_at_the_suite() {
    let macro_rules = "macro_rules! m {\n    () => {\n        $crate::c()\n    };\n}\n";
    let (text, _) =
        rewritten(&format!("use crate::a;\npub(crate) fn f() {{\n    crate::b();\n}}\n{macro_rules}"));
    let expected = "use crate::suite::a;\npub(crate) fn f() {\n    crate::suite::b();\n}\n";
    assert_eq!(text, format!("{expected}{macro_rules}"));
}

#[test]
fn the_lists_are_applied() {
    let listed = |tests| [Listed { suite: "suite", tests, reason: "so" }];
    let (text, tests) = rocmify_suite("suite", CPU_TEST, &not_twinned(&listed(&["add"]))).unwrap();
    assert_eq!((text.as_str(), tests.len()), (CPU_TEST, 0));
    let lists = Lists { skipped: &listed(&["add"]), ..Lists::default() };
    let (_, tests) = rocmify_suite("suite", CPU_TEST, &lists).unwrap();
    assert_eq!(tests[0].skipped, Some("so"));
    for (alone, skipped, list) in [
        (&["gone"] as &[&str], &[] as &[&str], "NOT_TWINNED"),
        // It names no device, so it never has a twin.
        (&["parses"], &[], "NOT_TWINNED"),
        (&[], &["gone"], "SKIPPED"),
    ] {
        let lists = Lists { not_twinned: &listed(alone), skipped: &listed(skipped), ..Lists::default() };
        let error = rocmify_suite("suite", CPU_TEST, &lists).unwrap_err();
        assert!(matches!(&error, SuiteError::Stale { list: of, .. } if *of == list), "{error}");
    }
}

#[test]
fn text_that_occurs_once_can_be_replaced_in_a_twin() {
    let place = |test, from| Reworded { suite: "suite", test, from, to: "assert_ne!", reason: "so" };
    let rewritten = |place| {
        let lists = Lists { reworded: &[place], ..Lists::default() };
        rocmify_suite("suite", CPU_TEST, &lists)
    };
    let (text, _) = rewritten(place("add", "assert_eq!")).unwrap();
    let (original, twin) = text.split_at(CPU_TEST.len());
    assert_eq!(original, CPU_TEST);
    assert!(twin.contains("    assert_ne!(cpu_ones() + ones(dev), 2);\n"), "{twin}");
    for (from, times) in [("assert_lt!", 0), ("dev", 2)] {
        let error = rewritten(place("add", from)).unwrap_err();
        assert!(matches!(&error, SuiteError::Reworded { found, .. } if *found == times), "{error}");
    }
    // It has no twin.
    let error = rewritten(place("parses", "assert!")).unwrap_err();
    assert!(matches!(&error, SuiteError::Stale { list: "REWORDED", .. }), "{error}");
}

#[test]
fn text_can_be_replaced_in_a_function_of_test_device() {
    let source = "fn sums(d: &Device) {\n    assert_eq!(sum(d), 2);\n}\ntest_device!(sums, a, b, c);\n";
    let place = Reworded { suite: "suite", test: "sums", from: "assert_eq!", to: "assert_ne!", reason: "so" };
    let lists = Lists { reworded: &[place], ..Lists::default() };
    let (text, _) = rocmify_suite("suite", source, &lists).unwrap();
    assert_eq!(text, source.replace("assert_eq!", "assert_ne!"));
}

#[test]
fn a_test_for_cuda_only_must_be_listed() {
    let source = "#[cfg(feature = \"cuda\")]\n#[test]\nfn two_cards() {}\n";
    let error = rocmify_suite("suite", source, &Lists::default()).unwrap_err();
    assert!(matches!(&error, SuiteError::CudaOnly { test, .. } if test == "two_cards"), "{error}");
    let alone = [Listed { suite: "suite", tests: &["two_cards"], reason: "cudarc" }];
    assert_eq!(rocmify_suite("suite", source, &not_twinned(&alone)).unwrap().0, source);
}

#[test]
fn upstreams_files_have_the_listed_tests() {
    let work_dir = tempfile::tempdir().unwrap();
    for (name, device, all) in
        [("candle-core", 97, 150), ("candle-nn", 10, 47), ("candle-transformers", 0, 4)]
    {
        let dir = locate(&[name], VERSION, work_dir.path()).unwrap().remove(0);
        let suites = rocmify_suites(name, &dir).unwrap();
        let tests: Vec<_> = suites.iter().flat_map(|suite| &suite.tests).collect();
        assert_eq!(tests.iter().filter(|test| test.kind == Kind::Device).count(), device);
        assert_eq!(tests.len(), all);
    }
}

#[test]
fn an_unlisted_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tests")).unwrap();
    for suite in SUITES.iter().filter(|suite| suite.crate_name == "candle-nn") {
        fs::write(dir.path().join("tests").join(format!("{}.rs", suite.name)), "").unwrap();
    }
    let error = |dir| rocmify_suites("candle-nn", dir).unwrap_err();
    assert!(matches!(error(dir.path()), SuiteError::Stale { .. } | SuiteError::Count { .. }));
    fs::write(dir.path().join("tests/attention.rs"), "").unwrap();
    fs::remove_file(dir.path().join("tests/ops.rs")).unwrap();
    let error = error(dir.path()).to_string();
    assert!(error.contains("attention, ops"), "{error}");
}
