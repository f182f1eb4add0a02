//! Rewriting of whole crates: match counts of special rules, forms, and writing.

use std::collections::BTreeMap;
use std::fs;

use rocmify::CRATES;
use rocmify::core_rules::CANDLE_CORE;
use rocmify::rename::names_cuda;
use rocmify::report::Report;
use rocmify::rules::{CrateRules, EVERY_FILE, Edit, OwnModule, Rule, after, before, replace};
use rocmify::tree::{Form, Tree, TreeError};
use rocmify::upstream::{self, VERSION, locate};

const PLAIN: CrateRules = CrateRules {
    name: "small",
    cuda_only: &["cuda_backend/"],
    left_alone: 0,
    rules: &[],
    mending_rules: &[],
    included_rules: &[],
    own_modules: &[OwnModule { name: "rocm_backend", public: true, rocm_only: true }],
};

fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

fn rewrite(rules: &CrateRules, list: &[(&str, &str)]) -> Result<Tree, TreeError> {
    Tree::rewrite_files(rules, files(list), "9.9.9", Form::Plain)
}

#[test]
fn an_unexpected_match_count_is_an_error_with_rule_file_and_version() {
    let rules = CrateRules {
        rules: vec![replace("raise-limit", "limits.rs", 1, "LIMIT: u8 = 1", "LIMIT: u8 = 2")].leak(),
        ..PLAIN
    };
    for (text, found) in [("", 0), ("const LIMIT: u8 = 1;\nmod m { const LIMIT: u8 = 1; }\n", 2)] {
        let error = rewrite(&rules, &[("limits.rs", text)]).unwrap_err().to_string();
        for part in
            ["`raise-limit`", "limits.rs", "9.9.9", "must match 1 times", &format!("matched {found} times")]
        {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
    let tree = rewrite(&rules, &[("limits.rs", "const LIMIT: u8 = 1;\n")]).unwrap();
    assert_eq!(tree.files["limits.rs"], "const LIMIT: u8 = 2;\n");
}

#[test]
fn a_body_rule_without_a_match_is_an_error() {
    const GONE: Rule = Rule {
        name: "gone",
        file: "ops.rs",
        expect: 1,
        edit: Edit::MethodBody { owner: "Gone", method: "cuda_fwd", body: "gone()" },
    };
    let rules = CrateRules { rules: &[GONE], ..PLAIN };
    let error = rewrite(&rules, &[("ops.rs", "impl Op for Here {}\n")]).unwrap_err();
    assert!(matches!(&error, TreeError::Count { rule, found: 0, .. } if rule == "gone"), "{error}");
}

#[test]
fn rules_apply_in_order_and_after_the_twins() {
    let rules = CrateRules {
        rules: vec![after("first", "e.rs", "Rocm,", " One,"), before("second", EVERY_FILE, "One,", "Zero, ")]
            .leak(),
        ..PLAIN
    };
    let tree = rewrite(&rules, &[("e.rs", "enum E {\n    Cuda,\n}\n")]).unwrap();
    assert_eq!(tree.files["e.rs"], "enum E {\n    Cuda,\n    Rocm, Zero, One,\n}\n");
}

#[test]
fn a_use_of_cuda_without_a_rule_is_an_error_with_its_place() {
    let text = "fn f() {}\nstatic X: Cuda = Cuda;\n";
    let error = rewrite(&PLAIN, &[("x.rs", text)]).unwrap_err();
    assert!(matches!(error, TreeError::Left { found: 2, expect: 0, .. }), "{error}");
    assert!(error.to_string().contains("x.rs:2: static X"), "{error}");
}

#[test]
fn cuda_implementations_are_unchanged_and_stubs_get_a_twin_file() {
    let rules = CrateRules {
        rules: &[Rule {
            name: "stub",
            file: "dummy_cuda.rs",
            expect: 1,
            edit: Edit::TwinFile("dummy_rocm.rs"),
        }],
        ..PLAIN
    };
    let kernel = "impl CudaStorage {\n    fn cuda(&self) {}\n}\n";
    let tree = rewrite(
        &rules,
        &[("cuda_backend/mod.rs", kernel), ("dummy_cuda.rs", "//! No CUDA.\npub struct CudaDevice;\n")],
    )
    .unwrap();
    assert_eq!(tree.files["cuda_backend/mod.rs"], kernel);
    assert_eq!(tree.files["dummy_cuda.rs"], "//! No CUDA.\npub struct CudaDevice;\n");
    assert_eq!(tree.files["dummy_rocm.rs"], "//! No ROCm.\npub struct RocmDevice;\n");
}

#[test]
fn an_included_lib_has_no_inner_docs_and_a_plain_one_declares_our_modules() {
    let lib = "//! Docs.\n//!\n\nmod a;\n// Stays.\n";
    let list = files(&[("lib.rs", lib)]);
    let included = Tree::rewrite_files(&PLAIN, list.clone(), VERSION, Form::Included).unwrap();
    assert_eq!(included.files["lib.rs"], "mod a;\n// Stays.\n");
    let plain = Tree::rewrite_files(&PLAIN, list, VERSION, Form::Plain).unwrap();
    assert_eq!(plain.files["lib.rs"], format!("{lib}\n#[cfg(feature = \"rocm\")]\npub mod rocm_backend;\n"));
    let attribute = files(&[("lib.rs", "//! Docs.\n#![no_std]\n")]);
    let error = Tree::rewrite_files(&PLAIN, attribute, VERSION, Form::Included).unwrap_err();
    assert!(matches!(error, TreeError::InnerAttribute { .. }), "{error}");
}

#[test]
fn writing_again_keeps_unchanged_files_and_removes_stale_ones() {
    let dir = tempfile::tempdir().unwrap();
    let tree = rewrite(&PLAIN, &[("a.rs", "// a\n"), ("m/b.rs", "// b\n")]).unwrap();
    tree.write(dir.path()).unwrap();
    let before = fs::metadata(dir.path().join("m/b.rs")).unwrap().modified().unwrap();
    fs::write(dir.path().join("stale.rs"), "").unwrap();
    tree.write(dir.path()).unwrap();
    assert_eq!(fs::metadata(dir.path().join("m/b.rs")).unwrap().modified().unwrap(), before);
    assert!(!dir.path().join("stale.rs").exists());
    assert_eq!(fs::read_to_string(dir.path().join("a.rs")).unwrap(), "// a\n");
}

fn upstream_tree(rules: &CrateRules, form: Form) -> Tree {
    let work_dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dirs = locate(&[rules.name], VERSION, work_dir).unwrap();
    Tree::rewrite(rules, &dirs[0], VERSION, form).unwrap()
}

#[test]
fn every_rule_matches_upstream() {
    for rules in CRATES {
        let tree = upstream_tree(&rules, Form::Included);
        let report = Report { rules: &rules, tree: &tree, version: VERSION }.to_string();
        for rule in rules.every_rule() {
            let line =
                format!("special rule {}: {} sites of {} expected\n", rule.name, rule.expect, rule.expect);
            assert!(report.contains(&line), "{line:?} is not in the report of {}", rules.name);
        }
    }
}

#[test]
fn no_line_of_upstream_is_removed() {
    // Without rules that replace text, twins only add lines: all of upstream's lines are kept in order.
    let work_dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dirs = locate(&["candle-core"], VERSION, work_dir).unwrap();
    let tree = upstream_tree(&CANDLE_CORE, Form::Plain);
    for file in ["storage.rs", "error.rs", "display.rs", "quantized/mod.rs", "tensor.rs"] {
        let original = fs::read_to_string(dirs[0].join("src").join(file)).unwrap();
        let mut ours = tree.files[file].lines();
        for line in original.lines() {
            // Imports and alternatives are extended in place.
            let kept = |candidate: &str| {
                candidate == line
                    || (names_cuda(line)
                        && candidate.replace(", RocmStorage", "").replace(" | QStorage::Rocm(_)", "") == line)
            };
            assert!(ours.any(kept), "{file} lost {line:?}");
        }
    }
}

#[test]
fn rewriting_a_rewritten_tree_is_an_error() {
    let once = rewrite(&PLAIN, &[("e.rs", "enum E {\n    Cuda,\n}\n")]).unwrap();
    let error = Tree::rewrite_files(&PLAIN, once.files, VERSION, Form::Plain).unwrap_err();
    assert!(matches!(&error, TreeError::NamesRocm { file, .. } if file == "e.rs"), "{error}");
}

#[test]
fn a_missing_crate_is_an_error_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = locate(&["candle-core"], "999.0.0", dir.path()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, upstream::LocateError::Fetch { .. }), "{text}");
    assert!(text.contains("candle-core 999.0.0") && text.contains(upstream::DIR_VARIABLE), "{text}");
}
