//! Copies code objects to a folder from which a crate embeds them with `include_bytes!`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::{BuildError, BuiltObject, Target};

/// Name of the generated source, which the embedding crate includes.
pub const TABLE_FILE: &str = "embedded.rs";

/// Copies the compressed objects to `out_dir` and writes [`TABLE_FILE`] there, which defines
/// `TARGETS: &[&str]` and `EMBEDDED: &[Embedded]` with `Embedded { module, target, size, compressed }`.
///
/// # Errors
/// [`BuildError::Io`].
pub fn embed(objects: &[BuiltObject], targets: &[Target], out_dir: &Path) -> Result<(), BuildError> {
    let mut table = String::new();
    let names: Vec<&str> = targets.iter().map(Target::name).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(table, "static TARGETS: &[&str] = &{names:?};");
    let _ = writeln!(table, "static EMBEDDED: &[Embedded] = &[");
    for object in objects {
        let file = format!("{}-{}.hsaco.zst", object.module, object.target);
        let path = out_dir.join(&file);
        fs::copy(&object.compressed, &path).map_err(BuildError::io("cannot write", &path))?;
        let _ = writeln!(
            table,
            "    Embedded {{ module: {:?}, target: {:?}, size: {}, compressed: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\")) }},",
            object.module,
            object.target.name(),
            object.size
        );
    }
    let _ = writeln!(table, "];");
    let path = out_dir.join(TABLE_FILE);
    fs::write(&path, table).map_err(BuildError::io("cannot write", &path))
}
