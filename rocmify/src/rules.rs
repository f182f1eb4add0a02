//! What a special rule is: a named edit that must match exactly as often as it says.

/// A place that the general rule cannot get right alone.
///
/// Rules are applied in the order of their list, after the general rule made its twins.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Names the rule in reports and errors.
    pub name: &'static str,
    /// The file below upstream's `src/`, or [`EVERY_FILE`].
    pub file: &'static str,
    /// How many places the rule must find, over all of its files.
    pub expect: usize,
    /// What it does there.
    pub edit: Edit,
}

/// A rule that inserts text after an anchor that the file has once.
pub const fn after(
    name: &'static str,
    file: &'static str,
    anchor: &'static str,
    insert: &'static str,
) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::After { anchor, insert } }
}

/// A rule that inserts text before an anchor that the file has once.
pub const fn before(
    name: &'static str,
    file: &'static str,
    anchor: &'static str,
    insert: &'static str,
) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::Before { anchor, insert } }
}

/// A rule that replaces a text at as many places as expected.
pub const fn replace(
    name: &'static str,
    file: &'static str,
    expect: usize,
    from: &'static str,
    to: &'static str,
) -> Rule {
    Rule { name, file, expect, edit: Edit::Replace { from, to } }
}

/// The `file` of a rule that looks at all of upstream's files.
pub const EVERY_FILE: &str = "*";

/// What a special rule does at the places it finds.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are what the sentences of the variants name")]
pub enum Edit {
    /// The whole file has a renamed twin of this name, beside it.
    TwinFile(&'static str),
    /// In the impl of `owner`, the twin of a method that only exists with the feature `cuda`
    /// gets this body: its CUDA body is an implementation, not a dispatch.
    MethodBody { owner: &'static str, method: &'static str, body: &'static str },
    /// The twin of a match arm that only exists with the feature `cuda` gets this body.
    /// The pattern is compared without white space.
    ArmBody { pattern: &'static str, body: &'static str },
    /// This text follows the anchor.
    After { anchor: &'static str, insert: &'static str },
    /// This text precedes the anchor.
    Before { anchor: &'static str, insert: &'static str },
    /// The text is replaced.
    Replace { from: &'static str, to: &'static str },
}

/// All that rocmify must know of one upstream crate.
#[derive(Debug, Clone, Copy)]
pub struct CrateRules {
    /// The crate's name in the registry.
    pub name: &'static str,
    /// Files, or folders with a trailing `/`, that upstream compiles with the feature `cuda` only:
    /// they implement CUDA, and what they do is written by hand for ROCm.
    pub cuda_only: &'static [&'static str],
    /// How many mentions of CUDA outside of those files may stay without a twin. More means that
    /// upstream names CUDA in a place that no rule knows.
    pub left_alone: usize,
    /// The special rules.
    pub rules: &'static [Rule],
    /// Lists of special rules that have nothing to do with ROCm: they mend upstream for every device.
    pub mending_rules: &'static [&'static [Rule]],
    /// Further rules for a tree that comes in by `include!`, where exported macros may not be
    /// named by their absolute path.
    pub included_rules: &'static [Rule],
    /// The modules that are written by hand in this repository, in the crate's own `src/`.
    pub own_modules: &'static [OwnModule],
}

impl CrateRules {
    /// The special rules, those of an included tree last.
    pub fn every_rule(&self) -> impl Iterator<Item = &'static Rule> {
        let mending = self.mending_rules.iter().copied().flatten();
        self.rules.iter().chain(mending).chain(self.included_rules)
    }
}

/// A module of ours.
#[derive(Debug, Clone, Copy)]
pub struct OwnModule {
    /// Its name.
    pub name: &'static str,
    /// Whether it is `pub`.
    pub public: bool,
    /// Whether it exists with the feature `rocm` only.
    pub rocm_only: bool,
}
