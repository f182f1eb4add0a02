//! What the build scripts of the rewritten crates do.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use crate::rules::CrateRules;
use crate::tree::{Form, Tree};
use crate::upstream;

/// Rewrites the crate into `OUT_DIR/upstream/`, whose `lib.rs` the crate's own one includes.
///
/// # Errors
/// When upstream cannot be found, or a rule does not fit it.
pub fn rocmify(rules: &CrateRules) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    upstream::print_rerun_lines();
    let out_dir =
        PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: this runs in build scripts")?);
    for dir in upstream::locate(&[rules.name], upstream::VERSION, &out_dir)? {
        Tree::rewrite(rules, &dir, upstream::VERSION, Form::Included)?.write(&out_dir.join("upstream"))?;
    }
    Ok(())
}
