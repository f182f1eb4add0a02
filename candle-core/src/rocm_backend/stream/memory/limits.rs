//! Limits of the memory pool: reserve, cache size, idle time, and the recommended size of an allocation.
use super::super::wait::seconds;
use std::ffi::OsString;
use std::time::Duration;

/// Environment variable with the memory that stays free on the GPU: bytes, with an optional K, M or G, or a percentage of
/// the GPU's memory like `3%`.
pub const RESERVE_VARIABLE: &str = "CANDLE_ROCM_MEMORY_RESERVE";
/// Environment variable with the seconds after which unused memory is returned to the driver; never if unset or 0.
pub const IDLE_VARIABLE: &str = "CANDLE_ROCM_MEMORY_IDLE";
/// Environment variable with the maximum number of bytes cached for reuse, with an optional K, M or G. 0 disables caching;
/// unset means no limit.
pub const CACHE_VARIABLE: &str = "CANDLE_ROCM_MEMORY_CACHE";
/// Environment variable with the recommended maximum of an allocation as a percentage of the free memory: 1 to 100.
pub const SHARE_VARIABLE: &str = "CANDLE_ROCM_MEMORY_SHARE";

const DEFAULT_SHARE: u8 = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Recommended maximum of an allocation, in percent of the free memory.
    pub(super) share: u8,
    /// Maximum number of bytes cached for reuse.
    pub(super) cached: Option<usize>,
    /// Number of bytes that stay free on the GPU.
    pub(super) reserve: usize,
    /// Time after which unused memory is returned to the driver.
    pub(super) idle: Option<Duration>,
}

impl Limits {
    /// Returns the limits from the environment, with defaults for a GPU of `total` bytes.
    pub(super) fn of(total: usize, shared_with_display: bool) -> Result<Self, String> {
        Self::from_lookup(total, shared_with_display, |name| std::env::var_os(name))
    }

    fn from_lookup(
        total: usize,
        shared_with_display: bool,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let text = |name: &str| {
            let value = lookup(name)?.to_string_lossy().trim().to_string();
            (!value.is_empty()).then_some(value)
        };
        Ok(Self {
            share: read(SHARE_VARIABLE, text, "percent of the free memory, 1 to 100", percent)?
                .map_or(DEFAULT_SHARE, |share| share as u8),
            cached: read(CACHE_VARIABLE, text, "bytes, like 512M or 2G, or 0", bytes)?,
            reserve: read(RESERVE_VARIABLE, text, "bytes, like 512M or 2G, or percent, like 3%", |text| {
                part_of(total, text).or_else(|| bytes(text))
            })?
            .unwrap_or_else(|| default_reserve(total, shared_with_display)),
            idle: read(IDLE_VARIABLE, text, "seconds, like 30 or 0.5", seconds)?
                .filter(|time| !time.is_zero()),
        })
    }

    pub(super) fn share_of(&self, free: usize) -> usize {
        percent_of(free, self.share.into())
    }
}

/// Returns 5% but at least 512 MiB if a display is attached, otherwise 1% but at least 128 MiB. The result is at most a
/// quarter of the memory.
fn default_reserve(total: usize, shared_with_display: bool) -> usize {
    let (percent, least) = if shared_with_display { (5, 512 << 20) } else { (1, 128 << 20) };
    percent_of(total, percent).max(least).min(total / 4)
}

fn read<T>(
    name: &str,
    text: impl Fn(&str) -> Option<String>,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(text) = text(name) else { return Ok(None) };
    let error = || format!("{name}={text} is not understood; expected {expected}");
    parse(&text).map(Some).ok_or_else(error)
}

fn percent_of(bytes: usize, percent: usize) -> usize {
    // The percentage is at most 100, so the result fits.
    (bytes as u128 * percent as u128 / 100) as usize
}

fn percent(text: &str) -> Option<usize> {
    text.parse().ok().filter(|share| (1..=100).contains(share))
}

fn part_of(total: usize, text: &str) -> Option<usize> {
    let percent = text.strip_suffix('%')?.parse().ok().filter(|&percent| percent < 100)?;
    Some(percent_of(total, percent))
}

/// Parses a number of bytes with an optional suffix K, M or G.
pub(crate) fn bytes(text: &str) -> Option<usize> {
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

    const GIB: usize = 1 << 30;

    fn limits(name: &str, value: &str) -> Result<Limits, String> {
        Limits::from_lookup(100 * GIB, false, |variable| (variable == name).then(|| value.into()))
    }

    #[test]
    fn defaults_cache_memory_and_keep_a_reserve() {
        let limits = limits("NONE", "").unwrap();
        assert_eq!(limits, Limits { share: 70, cached: None, reserve: GIB, idle: None });
        assert_eq!(limits.share_of(1000), 700);
        assert_eq!(limits.share_of(usize::MAX), usize::MAX / 100 * 70 + (usize::MAX % 100) * 70 / 100);
    }

    #[test]
    fn a_gpu_with_a_display_has_a_larger_reserve() {
        let mib = 1 << 20;
        for (total, displayless, display) in [
            (100 * GIB, GIB, 5 * GIB),
            (8 * GIB, 128 * mib, 512 * mib),
            (GIB, 128 * mib, 256 * mib),
            (256 * mib, 64 * mib, 64 * mib),
        ] {
            assert_eq!(default_reserve(total, false), displayless, "{total}");
            assert_eq!(default_reserve(total, true), display, "{total}");
        }
    }

    #[test]
    fn variables_override_the_defaults() {
        assert_eq!(limits(SHARE_VARIABLE, "95").map(|l| l.share), Ok(95));
        for (text, cached) in [(" 3M ", Some(3 << 20)), ("0", Some(0)), ("", None)] {
            assert_eq!(limits(CACHE_VARIABLE, text).map(|l| l.cached), Ok(cached));
        }
        for (text, reserve) in
            [("3%", 3 * GIB), ("0", 0), ("0%", 0), ("2G", 2 * GIB), ("100", 100), ("", GIB)]
        {
            assert_eq!(limits(RESERVE_VARIABLE, text).map(|l| l.reserve), Ok(reserve), "{text}");
        }
        for (text, millis) in [("30", Some(30_000)), ("0.5", Some(500)), ("0", None), ("", None)] {
            assert_eq!(limits(IDLE_VARIABLE, text).map(|l| l.idle), Ok(millis.map(Duration::from_millis)));
        }
    }

    #[test]
    fn errors_name_invalid_values() {
        for (name, value) in [
            (SHARE_VARIABLE, "0"),
            (SHARE_VARIABLE, "101"),
            (SHARE_VARIABLE, "0.7"),
            (CACHE_VARIABLE, "much"),
            (CACHE_VARIABLE, "99999999999G"),
            (RESERVE_VARIABLE, "100%"),
            (RESERVE_VARIABLE, "%"),
            (RESERVE_VARIABLE, "-1"),
            (IDLE_VARIABLE, "soon"),
            (IDLE_VARIABLE, "-1"),
            (IDLE_VARIABLE, "inf"),
        ] {
            let error = limits(name, value).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
