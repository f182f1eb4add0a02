//! How many devices there are and how large they are: decided once per process.
use super::arch;

/// Bytes of memory of each device unless told otherwise: 16 GiB. They are only promised; the host
/// commits a page when it is first written.
pub const DEFAULT_TOTAL_MEMORY: u64 = 16 << 30;

/// What is the same for every device of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Memory of each device in bytes.
    pub total_memory: u64,
    /// Host threads that one kernel launch may use.
    pub threads: usize,
    /// Fills fresh device memory with this byte instead of zero, to show reads of uninitialised memory.
    /// Filled memory is committed at once.
    pub poison: Option<u8>,
    /// A wave that runs more instructions than this is taken to hang, and its launch fails.
    pub instruction_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            total_memory: DEFAULT_TOTAL_MEMORY,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            poison: None,
            instruction_limit: crate::exec::DEFAULT_INSTRUCTION_LIMIT,
        }
    }
}

/// The variables that [`Options::from_env`] reads.
pub const MEMORY_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_MEMORY";
pub const THREADS_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_THREADS";
pub const POISON_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_POISON";

impl Options {
    /// The defaults, overridden by the environment: `CANDLE_ROCM_EMULATOR_MEMORY` (bytes per device, with
    /// an optional K, M or G), `CANDLE_ROCM_EMULATOR_THREADS` (a number from 1) and
    /// `CANDLE_ROCM_EMULATOR_POISON` (a byte, decimal or 0x hexadecimal).
    ///
    /// # Errors
    /// [`ConfigureError::Variable`] for a value that does not parse.
    pub fn from_env() -> Result<Self, ConfigureError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigureError> {
        let mut options = Self::default();
        let read = |name: &'static str, wanted: &'static str, parse: &dyn Fn(&str) -> Option<u64>| {
            let Some(value) = lookup(name).filter(|value| !value.trim().is_empty()) else {
                return Ok(None);
            };
            match parse(value.trim()) {
                Some(number) => Ok(Some(number)),
                None => Err(ConfigureError::Variable { name, value, wanted }),
            }
        };
        if let Some(bytes) = read(MEMORY_VARIABLE, "bytes, like 8G or 512M", &parse_bytes)? {
            options.total_memory = bytes;
        }
        let threads = |text: &str| text.parse().ok().filter(|n| (1..=1024).contains(n));
        if let Some(threads) = read(THREADS_VARIABLE, "a number from 1 to 1024", &threads)? {
            options.threads = threads as usize;
        }
        if let Some(byte) = read(POISON_VARIABLE, "a byte, like 255 or 0xff", &parse_byte)? {
            options.poison = Some(byte as u8);
        }
        Ok(options)
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn parse_byte(text: &str) -> Option<u64> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.ok().filter(|byte| *byte <= 255)
}

/// Why the software GPU cannot be set up as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    #[error("the software GPU has no architecture {name:?}; it can be {known}")]
    UnknownArch { name: String, known: String },
    #[error("the software GPU was asked for no device; name at least one of {known}")]
    NoDevice { known: String },
    #[error("the software GPU already runs as {current}; it cannot become {wanted} in the same process")]
    AlreadyConfigured { current: String, wanted: String },
    #[error("{name}={value:?} is not understood; wanted {wanted}")]
    Variable { name: &'static str, value: String, wanted: &'static str },
}

/// Resolves architecture names to rows.
pub(super) fn resolve(archs: &[&str]) -> Result<Vec<&'static arch::ArchSpec>, ConfigureError> {
    let known = || arch::ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
    if archs.is_empty() {
        return Err(ConfigureError::NoDevice { known: known() });
    }
    archs
        .iter()
        .map(|name| {
            arch::find(name.trim())
                .ok_or_else(|| ConfigureError::UnknownArch { name: name.to_string(), known: known() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(name: &str, value: &str) -> Result<Options, ConfigureError> {
        Options::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn variables_override_defaults() {
        assert_eq!(from("NONE", "1"), Ok(Options::default()));
        assert_eq!(from(MEMORY_VARIABLE, "3G").map(|o| o.total_memory), Ok(3 << 30));
        assert_eq!(from(MEMORY_VARIABLE, "1000").map(|o| o.total_memory), Ok(1000));
        assert_eq!(from(THREADS_VARIABLE, " 7 ").map(|o| o.threads), Ok(7));
        assert_eq!(from(POISON_VARIABLE, "0xFf").map(|o| o.poison), Ok(Some(255)));
        assert_eq!(from(POISON_VARIABLE, "").map(|o| o.poison), Ok(None));
    }

    #[test]
    fn bad_values_are_named() {
        for (name, value) in [
            (MEMORY_VARIABLE, "many"),
            (MEMORY_VARIABLE, "0"),
            (MEMORY_VARIABLE, "99999999999G"),
            (MEMORY_VARIABLE, "é"),
            (THREADS_VARIABLE, "0"),
            (THREADS_VARIABLE, "-1"),
            (POISON_VARIABLE, "256"),
        ] {
            let error = from(name, value).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn archs_resolve_or_are_named() {
        assert_eq!(resolve(&["gfx1100", " gfx1102"]).map(|rows| rows.len()), Ok(2));
        let error = resolve(&["gfx1100", "gfx000"]).unwrap_err().to_string();
        assert!(error.contains("gfx000") && error.contains("gfx1100"), "{error}");
        assert!(resolve(&[]).is_err());
    }
}
