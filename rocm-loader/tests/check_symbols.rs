//! Tests of `symbols::check` with a library that lacks functions, and with files that are not libraries.
mod fake;

use std::error::Error;

use rocm_loader::{Library, symbols};

#[test]
fn a_library_is_compared_function_by_function() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("libamdhip64.so.6");
    fake::build("amdhip64.rs", &file)?;

    let report = symbols::check(&[&file])?;
    assert!(!report.is_complete());
    let library = &report.libraries[0];
    assert_eq!(library.library, Library::Hip);
    assert!(library.present.contains(&"hipMalloc") && library.missing.contains(&"hipModuleLaunchKernel"));
    let forwarded = symbols::all().filter(|symbol| symbol.library == Library::Hip).count();
    assert_eq!(library.present.len() + library.missing.len(), forwarded);
    let is_ours = |library| matches!(library, Library::HipBlasLt | Library::Rccl);
    let not_declared = symbols::all().filter(|symbol| is_ours(symbol.library)).count();
    assert!(not_declared > 10);
    assert_eq!(report.prototypes + not_declared, symbols::all().count());
    let text = report.to_string();
    assert!(
        text.contains("missing: hipModuleLaunchKernel") && !text.contains("missing: hipMalloc\n"),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_file_that_is_not_a_rocm_library_is_rejected() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let rejected = |name: &str| {
        let file = folder.path().join(name);
        symbols::check(&[file]).map_err(|error| error.to_string()).err().unwrap_or_default()
    };
    assert!(rejected("libm.so.6").contains("begins with none of libamdhip64.so"));
    assert!(rejected("librocblas.so.4").contains("librocblas.so.4"), "the file is missing");
    std::fs::write(folder.path().join("libMIOpen.so.1"), "text")?;
    assert!(rejected("libMIOpen.so.1").contains("libMIOpen.so.1"));
    assert!(rejected("libhipblaslt.so.0").contains("libhipblaslt.so.0"), "the file is missing");
    Ok(())
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = symbols::all().map(|symbol| symbol.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
