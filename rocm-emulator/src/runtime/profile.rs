//! The profile of the process: the counters of each kernel, written as JSON when the process ends.
//!
//! It contains only whole numbers and names, sorted by name, without times or addresses. Two runs of a program therefore
//! write identical files.
use super::module::Function;
use crate::exec::{Counters, Profile};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Counters by kernel, and the file that they are written to.
pub struct ProfileFile {
    file: PathBuf,
    kernels: Mutex<BTreeMap<Kernel, Counters>>,
}

/// A kernel with the resources listed in its code object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kernel {
    name: String,
    arch: &'static str,
    wave_size: u32,
    vgprs: u32,
    agprs: u32,
    sgprs: u32,
    lds_bytes: u32,
    private_bytes: u32,
}

impl ProfileFile {
    /// Creates an empty profile and writes its file immediately, so that an invalid path is reported at the start.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(file: PathBuf) -> std::io::Result<Self> {
        let profile = Self { file, kernels: Mutex::default() };
        profile.write()?;
        Ok(profile)
    }

    /// Adds the counters of a launch.
    pub fn add(&self, arch: &'static str, function: &Function, counters: Counters) {
        let (spec, metadata) = (&function.spec, &function.kernel.metadata);
        let kernel = Kernel {
            name: spec.name.clone(),
            arch,
            wave_size: if spec.wave32 { 32 } else { 64 },
            vgprs: metadata.vgprs,
            agprs: metadata.agprs,
            sgprs: metadata.sgprs,
            lds_bytes: spec.lds_bytes,
            private_bytes: spec.private_bytes,
        };
        *self.kernels.lock().entry(kernel).or_default() += counters;
    }

    /// Returns the profile in the file's format and resets it.
    pub fn take(&self) -> String {
        text(&std::mem::take(&mut self.kernels.lock()))
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> std::io::Result<()> {
        let text = text(&self.kernels.lock());
        let mut name = self.file.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}", std::process::id()));
        let unfinished = self.file.with_file_name(name);
        let written =
            std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, &self.file));
        if written.is_err() {
            // Only the first error is returned.
            let _ = std::fs::remove_file(&unfinished);
        }
        written
    }
}

/// Name and value of a JSON field.
type Field<'a> = (&'a str, String);

fn text(kernels: &BTreeMap<Kernel, Counters>) -> String {
    let objects: Vec<String> = kernels.iter().map(|(kernel, counters)| object(kernel, counters)).collect();
    let separator = if objects.is_empty() { "" } else { "\n" };
    format!("{{\"format\": 1, \"kernels\": [{separator}{}{separator}]}}\n", objects.join(",\n"))
}

fn object(kernel: &Kernel, counters: &Counters) -> String {
    let Counters { launches, workgroups, waves, vector, scalar, scalar_memory, .. } = *counters;
    let Counters { global_memory, lds, scratch, flow, bytes_loaded, bytes_stored, profile, .. } = *counters;
    let number = |name, value: u64| (name, value.to_string());
    let group = |name, fields: &[(&'static str, u64)]| -> Field {
        (name, braces(&fields.iter().map(|&(name, value)| number(name, value)).collect::<Vec<_>>(), " "))
    };
    let Profile { lanes, active_lanes, branches, splits, barriers, .. } = profile;
    #[rustfmt::skip]
    let fields = [
        ("name", quoted(&kernel.name)),
        ("arch", quoted(kernel.arch)),
        group("resources", &[
            ("wave_size", kernel.wave_size.into()), ("vgprs", kernel.vgprs.into()), ("agprs", kernel.agprs.into()),
            ("sgprs", kernel.sgprs.into()), ("lds_bytes", kernel.lds_bytes.into()),
            ("private_bytes", kernel.private_bytes.into()),
        ]),
        number("launches", launches),
        number("workgroups", workgroups),
        number("waves", waves),
        group("instructions", &[
            ("total", counters.instructions()), ("vector", vector), ("scalar", scalar), ("scalar_memory", scalar_memory),
            ("global_memory", global_memory), ("lds", lds), ("scratch", scratch), ("flow", flow),
        ]),
        group("bytes", &[
            ("loaded", bytes_loaded), ("stored", bytes_stored),
            ("lds_loaded", profile.lds_bytes_loaded), ("lds_stored", profile.lds_bytes_stored),
            ("scratch_loaded", profile.scratch_bytes_loaded), ("scratch_stored", profile.scratch_bytes_stored),
        ]),
        group("rates", &[
            ("quarter_rate", profile.quarter_rate), ("double_precision", profile.double_precision),
            ("products", profile.products),
        ]),
        group("coalescing", &[
            ("accesses", profile.accesses), ("bytes", profile.bytes),
            ("lines_64", profile.lines_64), ("min_lines_64", profile.min_lines_64),
            ("lines_128", profile.lines_128), ("min_lines_128", profile.min_lines_128),
            ("lines_loaded", profile.lines_loaded), ("lines_stored", profile.lines_stored),
        ]),
        group("lds", &[
            ("accesses", profile.lds_accesses), ("steps", profile.lds_steps), ("bank_conflicts", profile.bank_conflicts),
        ]),
        group("divergence", &[
            ("lanes", lanes), ("active_lanes", active_lanes), ("branches", branches), ("splits", splits),
            ("barriers", barriers),
        ]),
    ];
    braces(&fields, "\n  ")
}

fn braces(fields: &[Field], gap: &str) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
    format!("{{{}}}", fields.join(&format!(",{gap}")))
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Writing to a string cannot fail.
            c if c < ' ' => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a\"b\\c\n\u{e9}"), "\"a\\\"b\\\\c\\u000a\u{e9}\"");
    }

    #[test]
    fn an_unwritable_file_is_an_error() {
        let nowhere = std::env::temp_dir().join("no such folder").join("profile.json");
        assert!(ProfileFile::create(nowhere).is_err());
    }

    #[test]
    fn an_empty_profile_is_written() {
        let file = std::env::temp_dir().join(format!("empty-profile-{}.json", std::process::id()));
        let profile = ProfileFile::create(file.clone()).unwrap();
        assert_eq!(std::fs::read_to_string(&profile.file).unwrap(), "{\"format\": 1, \"kernels\": []}\n");
        std::fs::remove_file(file).unwrap();
    }
}
