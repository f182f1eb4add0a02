//! Settings from the environment: `CANDLE_ROCM_EMULATOR=key=value;key=value`, and separate variables for three of them.
use super::{ConfigureError, HipBlasLt, Miopen, Options};
use crate::exec::Checks;
use crate::runtime::CollectiveFault;
use std::ffi::OsString;

/// Variable with a list of settings.
pub const EMULATOR_VARIABLE: &str = "CANDLE_ROCM_EMULATOR";
/// Variables for single settings.
pub const MEMORY_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_MEMORY";
pub const THREADS_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_THREADS";
pub const POISON_VARIABLE: &str = "CANDLE_ROCM_EMULATOR_POISON";

const SINGLE: [(&str, &str); 3] =
    [(MEMORY_VARIABLE, "memory"), (THREADS_VARIABLE, "threads"), (POISON_VARIABLE, "poison")];

/// A setting.
struct Setting {
    key: &'static str,
    /// The expected values, for error messages.
    wanted: &'static str,
    /// Parses the value and sets the option; `None` if the value is invalid.
    set: fn(&mut Options, &str) -> Option<()>,
}

/// Defines [`SETTINGS`] from rows of a key, the expected values, and the option with the value that `text` sets.
macro_rules! settings {
    (|$text:ident| $($key:literal: $wanted:literal, $($option:ident).+ = $value:expr;)*) => {
        const SETTINGS: &[Setting] = &[$(Setting {
            key: $key,
            wanted: $wanted,
            set: |options, $text| {
                options.$($option).+ = $value;
                Some(())
            },
        }),*];
    };
}
settings! { |text|
    "check": "a list of memory, race and init, such as memory,race",
        checks = parse_checks(text)?;
    "max_instructions": "a number of at least 1",
        instruction_limit = parse_positive(text)?;
    "seed": "a number",
        seed = Some(text.parse().ok()?);
    "profile": "a file name",
        profile = Some(text.into());
    "miopen": "absent (not installed), none (no solution for any convolution) or broken (compiles nothing)",
        miopen = choose(
            text,
            [("absent", Miopen::Absent), ("none", Miopen::WithoutSolutions), ("broken", Miopen::Broken)],
        )?;
    "fail": "a list of functions and the numbers of their calls, such as hipMalloc:7,hipModuleLaunchKernel:1",
        injection.failing = text.split(',').map(parse_call).collect::<Option<_>>()?;
    "lose": "a function and the number of its call, such as hipModuleLaunchKernel:3",
        injection.lost = Some(parse_call(text)?);
    "largest": "bytes, such as 8G or 512M",
        injection.largest = Some(parse_bytes(text)?);
    "stall": "a number of at least 1",
        injection.stalled = Some(parse_positive(text)?);
    "stale": "a number of at least 1",
        injection.stale = Some(parse_positive(text)?);
    "refuse": "a target, such as gfx11-generic",
        injection.refused = Some(text.into());
    "pageable": "bytes, such as 64K",
        injection.pageable = Some(parse_bytes(text)?);
    "collective": "a fault (dies, late, count or async), a rank and the number of its call, such as dies:1:3",
        injection.collective = Some(parse_collective(text)?);
    "system": "a folder",
        system = Some(text.into());
    "hipblaslt": "absent or none",
        hipblaslt = choose(text, [("absent", HipBlasLt::Absent), ("none", HipBlasLt::None)])?;
    "memory": "bytes, such as 8G or 512M",
        total_memory = parse_bytes(text)?;
    "threads": "a number from 1 to 1024",
        threads = text.parse().ok().filter(|n| (1..=1024).contains(n))?;
    "poison": "a byte, such as 255 or 0xff",
        poison = Some(parse_byte(text)?);
}

fn known() -> String {
    SETTINGS.iter().map(|setting| setting.key).collect::<Vec<_>>().join(", ")
}

fn find(variable: &'static str, key: &str) -> Result<&'static Setting, ConfigureError> {
    let unknown = || ConfigureError::UnknownKey { variable, key: key.into(), known: known() };
    SETTINGS.iter().find(|setting| setting.key == key).ok_or_else(unknown)
}

impl Setting {
    fn apply(
        &self,
        options: &mut Options,
        variable: &'static str,
        value: &str,
    ) -> Result<(), ConfigureError> {
        let Self { key, wanted, .. } = *self;
        let bad = || ConfigureError::Setting { variable, key, value: value.into(), wanted };
        match value.trim() {
            "" => Err(bad()),
            value => (self.set)(options, value).ok_or_else(bad),
        }
    }
}

/// Returns the defaults, overridden by the variables that `lookup` reads. Empty variables count as unset.
pub(super) fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Options, ConfigureError> {
    let text = |variable: &'static str| match lookup(variable).map(OsString::into_string) {
        Some(Ok(text)) if text.trim().is_empty() => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(value)) => {
            Err(ConfigureError::NotText { variable, value: value.to_string_lossy().into_owned() })
        }
        None => Ok(None),
    };
    let mut options = Options::default();
    for (variable, key) in SINGLE {
        if let Some(value) = text(variable)? {
            find(variable, key)?.apply(&mut options, variable, &value)?;
        }
    }
    if let Some(list) = text(EMULATOR_VARIABLE)? {
        read_list(&mut options, &list)?;
    }
    Ok(options)
}

fn read_list(options: &mut Options, list: &str) -> Result<(), ConfigureError> {
    let variable = EMULATOR_VARIABLE;
    let mut seen = Vec::new();
    for part in list.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(ConfigureError::NoKey { variable, text: part.into(), known: known() });
        };
        let setting = find(variable, key.trim())?;
        if seen.contains(&setting.key) {
            return Err(ConfigureError::Twice { variable, key: setting.key });
        }
        seen.push(setting.key);
        setting.apply(options, variable, value)?;
    }
    if options.seed.is_some() && options.injection.stalled.is_some() {
        let reason = "with a seed, the waiting thread runs the launches and would stall itself";
        return Err(ConfigureError::Contradiction { variable, first: "seed", second: "stall", reason });
    }
    Ok(())
}

fn parse_checks(text: &str) -> Option<Checks> {
    let mut checks = Checks::default();
    for name in text.split(',') {
        match name.trim() {
            "memory" => checks.memory = true,
            "race" => checks.race = true,
            "init" => checks.init = true,
            _ => return None,
        }
    }
    Some(checks)
}

fn parse_positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

/// Returns the value with the given name.
fn choose<T, const N: usize>(text: &str, choices: [(&str, T); N]) -> Option<T> {
    choices.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value)
}

fn parse_call(text: &str) -> Option<(String, u64)> {
    let (function, nth) = text.trim().split_once(':')?;
    let is_name = function.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !function.is_empty();
    Some((function.to_string(), nth.parse().ok().filter(|nth| is_name && *nth > 0)?))
}

fn parse_collective(text: &str) -> Option<(CollectiveFault, usize, u64)> {
    use CollectiveFault::{Async, Count, Dies, Late};
    let (fault, call) = text.split_once(':')?;
    let (rank, nth) = call.split_once(':')?;
    let fault = choose(fault.trim(), [("dies", Dies), ("late", Late), ("count", Count), ("async", Async)])?;
    Some((fault, rank.trim().parse().ok()?, parse_positive(nth.trim())?))
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

fn parse_byte(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Injection;
    use std::path::Path;

    fn from(variables: &[(&str, &str)]) -> Result<Options, ConfigureError> {
        read(|asked| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_list_sets_every_option() {
        let all = "check=memory, init ; max_instructions=5;profile=a b.json;miopen=none;fail=hipMalloc:7, hipFree:1;lose=hipFree:2;largest=1M;stall=4;stale=3;refuse=gfx11-generic;pageable=64K;collective=late:1:3;system=/a b;hipblaslt=none;memory=3G;threads=2;poison=0xff;";
        let options = from(&[(EMULATOR_VARIABLE, all)]).unwrap();
        let expected = Options {
            total_memory: 3 << 30,
            threads: 2,
            poison: Some(255),
            instruction_limit: 5,
            checks: Checks { memory: true, race: false, init: true },
            seed: None,
            profile: Some(Path::new("a b.json").into()),
            miopen: Miopen::WithoutSolutions,
            injection: Injection {
                failing: vec![("hipMalloc".into(), 7), ("hipFree".into(), 1)],
                lost: Some(("hipFree".into(), 2)),
                largest: Some(1 << 20),
                stalled: Some(4),
                stale: Some(3),
                refused: Some("gfx11-generic".into()),
                pageable: Some(64 << 10),
                collective: Some((CollectiveFault::Late, 1, 3)),
            },
            hipblaslt: HipBlasLt::None,
            system: Some(Path::new("/a b").into()),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn single_variables_override_defaults_and_the_list_overrides_them() {
        assert_eq!(from(&[("NONE", "1"), (EMULATOR_VARIABLE, " ; ")]), Ok(Options::default()));
        let single = |name, value| from(&[(name, value)]).unwrap();
        assert_eq!(single(MEMORY_VARIABLE, "3G").total_memory, 3 << 30);
        assert_eq!(single(MEMORY_VARIABLE, "1000").total_memory, 1000);
        assert_eq!(single(THREADS_VARIABLE, " 7 ").threads, 7);
        assert_eq!(single(POISON_VARIABLE, "0xFf").poison, Some(255));
        assert_eq!(single(POISON_VARIABLE, "").poison, None);
        let both = from(&[(THREADS_VARIABLE, "7"), (EMULATOR_VARIABLE, "threads=3")]).unwrap();
        assert_eq!(both.threads, 3);
    }

    #[test]
    fn errors_name_invalid_values() {
        for (name, value) in [
            (MEMORY_VARIABLE, "many"),
            (MEMORY_VARIABLE, "0"),
            (MEMORY_VARIABLE, "99999999999G"),
            (MEMORY_VARIABLE, "é"),
            (THREADS_VARIABLE, "0"),
            (THREADS_VARIABLE, "-1"),
            (POISON_VARIABLE, "256"),
        ] {
            let error = from(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        for (part, wanted) in [
            ("check=memory,speed", "race and init"),
            ("check=", "race and init"),
            ("max_instructions=0", "a number of at least 1"),
            ("seed=-1", "a number"),
            ("profile=", "file"),
            ("miopen=old", "absent"),
            ("fail=hipMalloc", "hipMalloc:7"),
            ("fail=hipMalloc:0", "hipMalloc:7"),
            ("fail=hip-Malloc:1,", "hipMalloc:7"),
            ("lose=:1", "the number of its call"),
            ("largest=0", "8G"),
            ("stall=0", "a number of at least 1"),
            ("stale=0", "a number of at least 1"),
            ("refuse=", "gfx11-generic"),
            ("pageable=0", "64K"),
            ("collective=late:1:0", "dies:1:3"),
            ("collective=never:1:1", "dies:1:3"),
            ("system=", "a folder"),
            ("hipblaslt=old", "absent or none"),
            ("memory=x", "8G"),
            ("threads=1025", "1024"),
            ("poison=0x100", "0xff"),
        ] {
            let error = from(&[(EMULATOR_VARIABLE, part)]).unwrap_err().to_string();
            let (key, value) = part.split_once('=').unwrap();
            for part in [EMULATOR_VARIABLE, key, value, wanted] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn errors_name_unknown_settings_and_the_known_ones() {
        for (list, named) in [("seed=1;cheque=race", "cheque"), ("race", "race"), ("=5", "\"\"")] {
            let error = from(&[(EMULATOR_VARIABLE, list)]).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(&known()), "{error}");
        }
        assert_eq!(from(&[(EMULATOR_VARIABLE, "seed=9")]).unwrap().seed, Some(9));
        let absent = from(&[(EMULATOR_VARIABLE, "miopen=absent")]).unwrap().miopen;
        assert_eq!((absent, Options::default().miopen), (Miopen::Absent, Miopen::Present));
        assert_eq!(from(&[(EMULATOR_VARIABLE, "miopen=broken")]).unwrap().miopen, Miopen::Broken);
        let error = from(&[(EMULATOR_VARIABLE, "seed=1;stall=2")]).unwrap_err().to_string();
        assert!(error.contains("seed and stall exclude each other"), "{error}");
        let error = from(&[(EMULATOR_VARIABLE, "seed=1; seed=2")]).unwrap_err().to_string();
        assert!(error.contains("seed is set twice"), "{error}");
    }
}
