//! How much memory may be taken, and how much may be kept.
use std::ffi::OsString;

/// The share of the free memory that one request may take, in percent: 1 to 100.
pub const SHARE_VARIABLE: &str = "CANDLE_ROCM_MEMORY_SHARE";
/// Bytes that may be parked for reuse, with an optional K, M or G; 0 turns reuse off.
pub const PARKED_VARIABLE: &str = "CANDLE_ROCM_MEMORY_PARKED";

/// The rest belongs to the desktop and the driver.
const DEFAULT_SHARE: u8 = 70;
/// Of the card's memory.
const DEFAULT_PARKED: usize = 8;

/// The limits of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Percent of the free memory that one request may take.
    pub(super) share: u8,
    /// Bytes that may be parked.
    pub(super) parked: usize,
}

impl Limits {
    /// The defaults for a device of `total` bytes, overridden by the environment. On a software GPU nothing is
    /// parked unless that asks for it: each tensor has an allocation of its own, whose bounds are checked.
    pub(super) fn of(total: usize, software: bool) -> Result<Self, String> {
        let parked = if software { 0 } else { total / DEFAULT_PARKED };
        Self::from_lookup(parked, |name| std::env::var_os(name))
    }

    fn from_lookup(parked: usize, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let read = |name: &str, wanted: &str, parse: &dyn Fn(&str) -> Option<usize>| {
            let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return Ok(None) };
            let value = value.to_string_lossy();
            match parse(value.trim()) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{name}={value} is not understood; wanted {wanted}")),
            }
        };
        let percent = |text: &str| text.parse().ok().filter(|share| (1..=100).contains(share));
        let share = read(SHARE_VARIABLE, "percent of the free memory, 1 to 100", &percent)?;
        let asked = read(PARKED_VARIABLE, "bytes, like 512M or 2G, or 0", &bytes)?;
        Ok(Self { share: share.map_or(DEFAULT_SHARE, |share| share as u8), parked: asked.unwrap_or(parked) })
    }

    /// How many of `free` bytes one request may take.
    pub(super) fn allowed(&self, free: usize) -> usize {
        // Free memory of real devices is far from overflowing this.
        (free as u128 * u128::from(self.share) / 100) as usize
    }
}

fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(name: &str, value: &str) -> Result<Limits, String> {
        Limits::from_lookup(2 << 30, |asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn one_request_may_take_70_percent() {
        let limits = limits("NONE", "").unwrap();
        assert_eq!((limits.share, limits.parked), (70, 2 << 30));
        assert_eq!(limits.allowed(1000), 700);
        assert_eq!(limits.allowed(usize::MAX), usize::MAX / 100 * 70 + (usize::MAX % 100) * 70 / 100);
    }

    #[test]
    fn a_software_gpu_parks_nothing() {
        assert_eq!(Limits::of(16 << 30, true).map(|limits| limits.parked), Ok(0));
        assert_eq!(Limits::of(16 << 30, false).map(|limits| limits.parked), Ok(2 << 30));
    }

    #[test]
    fn variables_override_them() {
        assert_eq!(limits(SHARE_VARIABLE, "95").map(|l| l.share), Ok(95));
        assert_eq!(limits(PARKED_VARIABLE, " 3M ").map(|l| l.parked), Ok(3 << 20));
        assert_eq!(limits(PARKED_VARIABLE, "0").map(|l| l.parked), Ok(0));
        assert_eq!(limits(PARKED_VARIABLE, "").map(|l| l.parked), Ok(2 << 30));
    }

    #[test]
    fn bad_values_are_named() {
        for (name, value) in [
            (SHARE_VARIABLE, "0"),
            (SHARE_VARIABLE, "101"),
            (SHARE_VARIABLE, "0.7"),
            (PARKED_VARIABLE, "much"),
            (PARKED_VARIABLE, "99999999999G"),
        ] {
            let error = limits(name, value).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
