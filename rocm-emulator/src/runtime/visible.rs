//! The devices that are visible to the process: ROCR_VISIBLE_DEVICES selects first, then HIP_VISIBLE_DEVICES.

/// The variables in the order in which they are applied. Each numbers the devices that the previous one left.
const VARIABLES: [&str; 2] = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

/// Returns the visible ones of `count` devices in their new order. `lookup` reads a variable.
pub(super) fn devices(count: usize, lookup: impl Fn(&str) -> Option<String>) -> Vec<usize> {
    let mut devices: Vec<usize> = (0..count).collect();
    for list in VARIABLES.iter().filter_map(|name| lookup(name)) {
        let ordinals = ordinals(&list, devices.len());
        devices = ordinals.into_iter().map(|ordinal| devices[ordinal]).collect();
    }
    devices
}

/// Parses a list of ordinals up to the first that is not below `count`. Duplicates are skipped.
fn ordinals(list: &str, count: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for text in list.split(',') {
        match text.trim().parse() {
            Ok(ordinal) if ordinal < count => {
                if !found.contains(&ordinal) {
                    found.push(ordinal);
                }
            }
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(hip: Option<&str>, rocr: Option<&str>) -> Vec<usize> {
        devices(4, |name| {
            let value = if name.starts_with("HIP") { hip } else { rocr };
            value.map(str::to_owned)
        })
    }

    #[test]
    fn all_are_visible_without_the_variables() {
        assert_eq!(visible(None, None), [0, 1, 2, 3]);
    }

    #[test]
    fn a_list_selects_and_orders_devices() {
        assert_eq!(visible(Some("2"), None), [2]);
        assert_eq!(visible(Some("3, 0"), None), [3, 0]);
        assert_eq!(visible(None, Some("1,2")), [1, 2]);
        assert_eq!(visible(Some("1,1,0"), None), [1, 0]);
    }

    #[test]
    fn an_invalid_ordinal_ends_the_list() {
        assert_eq!(visible(Some("1,-1,2"), None), [1]);
        assert_eq!(visible(Some("0,4,1"), None), [0]);
        assert_eq!(visible(Some("0,two"), None), [0]);
        assert_eq!(visible(Some(""), None), [0; 0]);
        assert_eq!(visible(Some("-1"), None), [0; 0]);
    }

    #[test]
    fn hip_numbers_the_devices_that_rocr_leaves() {
        assert_eq!(visible(Some("1"), Some("2,3")), [3]);
        assert_eq!(visible(Some("2"), Some("2,3")), [0; 0]);
    }
}
