//! Checks the licenses of all dependencies against the list in `deny.toml`, without cargo-deny.
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::ci::FEATURES;
use crate::process::{cargo, root};

/// Checks every package that our features build, on all platforms. Upstream's features for CUDA, MKL and Metal are left out.
///
/// # Errors
/// Names each package whose license `deny.toml` does not allow, and each that states none.
pub fn check() -> Result<()> {
    let text = fs::read_to_string(root().join("deny.toml")).context("cannot read deny.toml")?;
    let table: toml::Value = toml::from_str(&text).context("deny.toml is no TOML")?;
    let allowed = table["licenses"]["allow"].as_array().context("deny.toml has no licenses.allow")?;
    let allowed: Vec<&str> = allowed.iter().filter_map(toml::Value::as_str).collect();
    let output = cargo(&["metadata", "--format-version=1", FEATURES[1], FEATURES[2]]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata listed no packages")?;
    let refused: Vec<String> =
        packages.iter().filter_map(|package| rejection_reason(package, &allowed)).collect();
    if !refused.is_empty() {
        bail!("licenses that deny.toml does not allow:\n  {}", refused.join("\n  "));
    }
    println!("licenses: ok packages={}", packages.len());
    Ok(())
}

/// Returns the reason why a package's license is rejected; `None` if it is allowed.
fn rejection_reason(package: &Value, allowed: &[&str]) -> Option<String> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    let Some(license) = package["license"].as_str() else {
        return Some(format!("{name}: states no license"));
    };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression) if is_allowed(&expression, allowed) => None,
        Ok(_) => Some(format!("{name}: {license}")),
        Err(error) => Some(format!("{name}: {license}: {}", error.reason)),
    }
}

fn is_allowed(expression: &Expression, allowed: &[&str]) -> bool {
    expression.evaluate(|requirement| allowed.contains(&requirement.to_string().as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::rejection_reason;

    #[test]
    fn one_allowed_alternative_is_enough_and_all_of_a_conjunction_are_needed() {
        let refused = |license: &str| {
            rejection_reason(&json!({"name": "a", "version": "1.0.0", "license": license}), &["MIT", "Zlib"])
                .is_some()
        };
        assert!(!refused("MIT OR GPL-3.0-only"));
        assert!(!refused("GPL-2.0-only/MIT"), "the old form of OR");
        assert!(!refused("MIT AND Zlib"));
        assert!(refused("MIT AND GPL-3.0-only"));
        assert!(refused("MIT WITH LLVM-exception"), "an exception is named by itself");
        assert!(refused("no license at all"));
        assert!(rejection_reason(&json!({"name": "a", "version": "1.0.0"}), &["MIT"]).is_some());
    }
}
