//! Compares the forwarded prototypes with the source of rocm-rs' bindings. The compiler already compares the public ones;
//! this test covers those that are private in rocm-rs.
use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

/// Returns rocm-rs' source folder, as reported by cargo.
fn rocm_rs() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env!("CARGO"))
        // Crates for other platforms may be missing from the local cache.
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let package = packages.iter().find(|package| package["name"] == "rocm-rs").ok_or("no rocm-rs")?;
    let manifest = PathBuf::from(package["manifest_path"].as_str().ok_or("no manifest path")?);
    Ok(manifest.parent().ok_or("no folder")?.join("src"))
}

/// Returns a declaration with paths cut to their last segment: `::std::os::raw::c_int` becomes `c_int`.
fn normalised(signature: &syn::Signature) -> String {
    struct LastSegments;
    impl syn::visit_mut::VisitMut for LastSegments {
        fn visit_path_mut(&mut self, path: &mut syn::Path) {
            if let Some(last) = path.segments.last().cloned() {
                *path = last.into();
            }
        }
        fn visit_fn_arg_mut(&mut self, argument: &mut syn::FnArg) {
            if let syn::FnArg::Typed(typed) = argument {
                self.visit_type_mut(&mut typed.ty);
            }
        }
    }
    let mut signature = signature.clone();
    signature.inputs.pop_punct();
    syn::visit_mut::VisitMut::visit_signature_mut(&mut LastSegments, &mut signature);
    quote::ToTokens::to_token_stream(&signature).to_string()
}

#[test]
fn every_prototype_equals_rocm_rs_declaration() -> Result<(), Box<dyn Error>> {
    let source = rocm_rs()?;
    let mut declared = HashMap::new();
    for library in ["hip", "rocblas", "miopen"] {
        let file = syn::parse_file(&std::fs::read_to_string(source.join(library).join("bindings.rs"))?)?;
        for item in file.items {
            let syn::Item::ForeignMod(block) = item else { continue };
            for item in block.items {
                if let syn::ForeignItem::Fn(function) = item {
                    declared.insert(function.sig.ident.to_string(), normalised(&function.sig));
                }
            }
        }
    }
    assert!(declared.len() > 1500, "only {} declarations were read", declared.len());
    let mut compared = 0;
    for symbol in rocm_loader::symbols::all() {
        let ours: syn::Signature = syn::parse_str(symbol.prototype)?;
        if !symbol.declared {
            let theirs = declared.get(symbol.name);
            assert_eq!(theirs, None, "{} has a declaration to compare with now", symbol.name);
            continue;
        }
        assert_eq!(Some(&normalised(&ours)), declared.get(symbol.name), "{}", symbol.name);
        compared += 1;
    }
    assert!(compared > 100, "only {compared} functions are forwarded");
    Ok(())
}
