//! Sections of rotary pairs with positions of three axes (M-RoPE).
use anyhow::{Result, ensure};
use serde_json::Value;

/// Axis whose position rotates each pair of elements of a head: 0 for time, 1 for rows and 2 for columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisSections(Vec<u8>);

impl AxisSections {
    /// Reads `mrope_section` and `mrope_interleaved` of the rotary parameters of a config.json, for `pairs` pairs of elements;
    /// `None` if there is no such field.
    ///
    /// # Errors
    /// Returns an error if it is not a list of three numbers whose sum is `pairs`.
    pub fn from_json(json: &Value, pairs: usize) -> Result<Option<Self>> {
        let Some(list) = json.get("mrope_section").filter(|list| !list.is_null()) else { return Ok(None) };
        let sections: Vec<usize> = serde_json::from_value(list.clone()).unwrap_or_default();
        ensure!(
            sections.len() == 3
                && sections.iter().try_fold(0usize, |sum, size| sum.checked_add(*size)) == Some(pairs),
            "\"mrope_section\" is {list}, but must be three numbers whose sum is {pairs}"
        );
        let is_interleaved = json["mrope_interleaved"] == true;
        let axis = |pair: usize| match is_interleaved {
            true => match pair % 3 {
                axis @ (1 | 2) if pair < 3 * sections[axis] => axis as u8,
                _ => 0,
            },
            false => u8::from(pair >= sections[0]) + u8::from(pair >= sections[0] + sections[1]),
        };
        Ok(Some(Self((0..pairs).map(axis).collect())))
    }

    /// Returns the position that rotates each pair of each row.
    pub fn positions(&self, axes: &[[u32; 3]]) -> Vec<u32> {
        axes.iter().flat_map(|axes| self.0.iter().map(|axis| axes[usize::from(*axis)])).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sections_select_axes() {
        let axes =
            |json: Value, pairs| AxisSections::from_json(&json, pairs).unwrap().map(|sections| sections.0);
        assert_eq!(axes(json!({"mrope_section": [2, 1, 1]}), 4).unwrap(), [0, 0, 1, 2]);
        let interleaved = json!({"mrope_section": [4, 2, 2], "mrope_interleaved": true});
        assert_eq!(axes(interleaved, 8).unwrap(), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(axes(json!({"mrope_section": null}), 4), None);
        for wrong in [json!([2, 1]), json!([2, 1, 2]), json!("x"), json!([1u64 << 63, 1u64 << 63, 4])] {
            let error = AxisSections::from_json(&json!({"mrope_section": wrong}), 4).unwrap_err().to_string();
            assert!(error.contains("whose sum is 4"), "{error}");
        }
    }
}
