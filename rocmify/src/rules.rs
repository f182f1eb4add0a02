//! Special rules: named edits that must match exactly the expected number of times.

/// An edit of code that the general rule cannot handle.
///
/// Rules are applied in the order of their list, after the general rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name of the rule in reports and errors.
    pub name: &'static str,
    /// The file below upstream's `src/`, or [`EVERY_FILE`].
    pub file: &'static str,
    /// Expected number of matches in all of its files.
    pub expect: usize,
    /// The edit at each match.
    pub edit: Edit,
}

/// Returns a rule that inserts text after an anchor that occurs once in the file.
pub const fn after(
    name: &'static str,
    file: &'static str,
    anchor: &'static str,
    insert: &'static str,
) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::After { anchor, insert } }
}

/// Returns a rule that inserts text before an anchor that occurs once in the file.
pub const fn before(
    name: &'static str,
    file: &'static str,
    anchor: &'static str,
    insert: &'static str,
) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::Before { anchor, insert } }
}

/// Returns a rule that replaces a text, which must occur `expect` times.
pub const fn replace(
    name: &'static str,
    file: &'static str,
    expect: usize,
    from: &'static str,
    to: &'static str,
) -> Rule {
    Rule { name, file, expect, edit: Edit::Replace { from, to } }
}

/// Value of [`Rule::file`] for rules that apply to all of upstream's files.
pub const EVERY_FILE: &str = "*";

/// The edit of a special rule.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the variants' documentation describes their fields")]
pub enum Edit {
    /// Adds a renamed copy of the whole file with this name.
    TwinFile(&'static str),
    /// Sets the body of a method's twin in the impl of `owner`. The method exists only with the feature `cuda`, and its CUDA
    /// body is an implementation instead of a dispatch.
    MethodBody { owner: &'static str, method: &'static str, body: &'static str },
    /// Sets the body of the twin of a match arm that exists only with the feature `cuda`. The pattern is compared without
    /// white space.
    ArmBody { pattern: &'static str, body: &'static str },
    /// Inserts the text after the anchor.
    After { anchor: &'static str, insert: &'static str },
    /// Inserts the text before the anchor.
    Before { anchor: &'static str, insert: &'static str },
    /// Replaces the text.
    Replace { from: &'static str, to: &'static str },
}

/// Rules of one upstream crate.
#[derive(Debug, Clone, Copy)]
pub struct CrateRules {
    /// Name of the crate in the registry.
    pub name: &'static str,
    /// Files, or folders with a trailing `/`, that upstream compiles only with the feature `cuda`. They implement CUDA, and
    /// their ROCm counterparts are written by hand.
    pub cuda_only: &'static [&'static str],
    /// Expected number of mentions of CUDA without a twin outside of these files. More means that no rule handles a new use
    /// of CUDA in upstream.
    pub left_alone: usize,
    /// Special rules.
    pub rules: &'static [Rule],
    /// Lists of special rules that fix upstream on every device, independent of ROCm.
    pub mending_rules: &'static [&'static [Rule]],
    /// Additional rules for a tree that is included with `include!`, where exported macros cannot be named by their absolute
    /// path.
    pub included_rules: &'static [Rule],
    /// Modules written by hand in this repository, in the crate's own `src/`.
    pub own_modules: &'static [OwnModule],
}

impl CrateRules {
    /// Returns all special rules, with those of an included tree last.
    pub fn every_rule(&self) -> impl Iterator<Item = &'static Rule> {
        let mending = self.mending_rules.iter().copied().flatten();
        self.rules.iter().chain(mending).chain(self.included_rules)
    }
}

/// A module written by hand in this repository.
#[derive(Debug, Clone, Copy)]
pub struct OwnModule {
    /// Name of the module.
    pub name: &'static str,
    /// True if it is `pub`.
    pub public: bool,
    /// True if it exists only with the feature `rocm`.
    pub rocm_only: bool,
}
