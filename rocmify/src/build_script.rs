//! Entry point of the rewritten crates' build scripts.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use crate::rules::CrateRules;
use crate::tree::{Form, Tree};
use crate::upstream;

/// Rewrites the crate into `OUT_DIR/upstream/`, whose `lib.rs` is included by the crate's own.
///
/// # Errors
/// If upstream cannot be found, or a rule does not match.
pub fn rocmify(rules: &CrateRules) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    upstream::print_rerun_lines();
    let out_dir = PathBuf::from(
        env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; this function must be called by a build script")?,
    );
    for dir in upstream::locate(&[rules.name], upstream::VERSION, &out_dir)? {
        Tree::rewrite(rules, &dir, upstream::VERSION, Form::Included)?.write(&out_dir.join("upstream"))?;
    }
    Ok(())
}
