//! Report of `rocmify --check`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::rules::CrateRules;
use crate::tree::{FileSite, Tree};

/// Lists the rules of a crate with their matches, one per line.
pub struct Report<'a> {
    /// Rules of the crate.
    pub rules: &'a CrateRules,
    /// The rewritten crate.
    pub tree: &'a Tree,
    /// Version of upstream.
    pub version: &'a str,
}

impl Report<'_> {
    fn special(&self, rule: &str) -> Option<usize> {
        self.rules.every_rule().find(|special| special.name == rule).map(|special| special.expect)
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut by_rule: BTreeMap<&str, Vec<&FileSite>> = BTreeMap::new();
        for place in &self.tree.sites {
            by_rule.entry(place.site.rule).or_default().push(place);
        }
        let (special, general): (Vec<_>, Vec<_>) =
            by_rule.iter().partition(|(rule, _)| self.special(rule).is_some());
        let sites = |part: &[(&&str, &Vec<&FileSite>)]| part.iter().map(|(_, places)| places.len()).sum();
        let (twins, places): (usize, usize) = (sites(&general), sites(&special));
        for (title, part) in [("general rule", general), ("special rule", special)] {
            for (rule, places) in part {
                let expected = match self.special(rule) {
                    Some(expect) => format!(" of {expect} expected"),
                    None => String::new(),
                };
                writeln!(f, "{title} {rule}: {} sites{expected}", places.len())?;
                for place in places {
                    writeln!(f, "    {}:{}: {}", place.file, place.site.line, place.site.text)?;
                }
            }
        }
        writeln!(f, "left alone: {} of {} expected", self.tree.left.len(), self.rules.left_alone)?;
        for place in &self.tree.left {
            writeln!(f, "    {}:{}: {}", place.file, place.site.line, place.site.text)?;
        }
        let rules = self.rules.every_rule().count();
        writeln!(
            f,
            "{} {}: {twins} twins by the general rule, {places} sites of {rules} special rules",
            self.rules.name, self.version
        )
    }
}
