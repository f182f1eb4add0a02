//! The driver of this process: chosen once, by a variable, by the program, or by the GPU that the machine has.
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError};

use rocm_driver_api::{DRIVER_VARIABLE, Driver, LibraryFile, LoadError, Parts, Registration};

use crate::drivers;

/// A driver with its resolved argument.
#[derive(Clone)]
struct Choice {
    name: &'static str,
    argument: String,
    driver: &'static dyn Driver,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argument.as_str() {
            "" => f.write_str(self.name),
            argument => write!(f, "{}:{argument}", self.name),
        }
    }
}

/// The driver of this process. It gives the methods of [`Driver`].
pub struct RunningDriver {
    choice: Choice,
    /// Kept here so that asking costs no call.
    parts: Option<&'static dyn Parts>,
}

impl RunningDriver {
    /// Returns the driver's name in [`DRIVER_VARIABLE`], without an argument.
    pub fn name(&self) -> &'static str {
        self.choice.name
    }

    /// Returns the receiver of notices about parts of allocations.
    #[inline]
    pub(crate) fn watcher(&self) -> Option<&'static dyn Parts> {
        self.parts
    }
}

impl Deref for RunningDriver {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        self.choice.driver
    }
}

static RUNNING: OnceLock<RunningDriver> = OnceLock::new();
/// Held while a driver starts. A failure is not kept, so a program may still select another driver.
static STARTING: Mutex<()> = Mutex::new(());
/// Drivers that the program added.
static ADDED: Mutex<Vec<&'static Registration>> = Mutex::new(Vec::new());

/// Adds a driver to those that can be named. One that comes later under a name that is taken is never chosen.
pub fn register(driver: &'static Registration) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(driver);
}

fn registrations() -> Vec<&'static Registration> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    drivers::ALL.iter().chain(added.iter()).copied().collect()
}

/// Lists the values of [`DRIVER_VARIABLE`], and what this build lacks.
fn known() -> String {
    let describe = |driver: &&Registration| match (driver.driver, driver.feature) {
        (None, Some(feature)) => format!("{} [not compiled in: feature `rocm-{feature}`]", driver.usage),
        _ => driver.usage.to_owned(),
    };
    registrations().iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Returns the driver that `value` names, as [`DRIVER_VARIABLE`] does.
fn named(value: &str) -> Result<Choice, LoadError> {
    let unknown = || LoadError::UnknownDriver { value: value.to_owned(), known: known() };
    let (name, argument) = match value.trim().split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (value.trim(), None),
    };
    let found = registrations().into_iter().find(|driver| driver.name == name).ok_or_else(unknown)?;
    let driver = found.driver.ok_or_else(|| LoadError::NotBuilt {
        driver: found.name,
        feature: found.feature.unwrap_or(found.name),
    })?;
    let argument = driver.resolve(argument).ok_or_else(unknown)?;
    Ok(Choice { name: found.name, argument, driver })
}

/// Returns the driver that the environment names, else the first whose GPU the machine has.
fn found() -> Result<Choice, LoadError> {
    match std::env::var_os(DRIVER_VARIABLE) {
        Some(value) if !value.is_empty() => return named(&value.to_string_lossy()),
        _ => {}
    }
    let mut reasons = Vec::new();
    for registration in registrations() {
        let Some(driver) = registration.driver else { continue };
        match (driver.detect(), driver.resolve(None)) {
            (Some(Ok(())), Some(argument)) => {
                return Ok(Choice { name: registration.name, argument, driver });
            }
            (Some(Err(reason)), _) => reasons.push(reason),
            _ => {}
        }
    }
    Err(LoadError::NoGpu { reason: reasons.join("; "), known: known() })
}

/// Returns the driver of this process; the first call chooses it: [`DRIVER_VARIABLE`] if set, else the first whose GPU
/// the machine has.
///
/// # Errors
/// No GPU, a library that is missing, or a driver that there is not, that is not compiled in or that refuses its
/// argument; the text tells which and what to do.
pub fn driver() -> Result<&'static RunningDriver, LoadError> {
    match RUNNING.get() {
        Some(driver) => Ok(driver),
        None => start(found),
    }
}

/// Chooses the driver from within the program, before its first use: `choice` is a value of [`DRIVER_VARIABLE`], which
/// is then not looked at. Choosing the running driver again is no error.
///
/// # Errors
/// [`LoadError::AlreadySelected`] if another driver runs; otherwise as [`driver`].
pub fn select(choice: &str) -> Result<(), LoadError> {
    let wanted = named(choice)?;
    let running = start(|| Ok(wanted.clone()))?;
    match (running.choice.to_string(), wanted.to_string()) {
        (current, wanted) if current != wanted => Err(LoadError::AlreadySelected { current, wanted }),
        _ => Ok(()),
    }
}

/// Returns the running driver; none is started.
#[inline]
pub(crate) fn running() -> Option<&'static RunningDriver> {
    RUNNING.get()
}

/// Starts a driver unless one runs already.
fn start(choose: impl FnOnce() -> Result<Choice, LoadError>) -> Result<&'static RunningDriver, LoadError> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = RUNNING.get() {
        return Ok(driver);
    }
    let choice = choose()?;
    choice.driver.start(&choice.argument)?;
    let parts = choice.driver.parts();
    Ok(RUNNING.get_or_init(|| RunningDriver { choice, parts }))
}

/// Returns false if no device can be expected: a driver, a device or the runtime is missing. Opens no library and starts
/// no driver; [`crate::device_archs`] tells for certain, and what is missing.
pub fn is_available() -> bool {
    match RUNNING.get() {
        Some(driver) => driver.is_available(),
        None => found().is_ok_and(|choice| choice.driver.is_available()),
    }
}

/// Lists the libraries behind the running driver; if none runs, those of the first driver there is.
pub fn libraries() -> Vec<LibraryFile> {
    let first = || drivers::ALL.iter().find_map(|registration| registration.driver);
    let driver = RUNNING.get().map(|running| &**running).or_else(first);
    driver.map(Driver::libraries).unwrap_or_default()
}

/// Returns what the code of a call that just failed on this thread could not tell: the library or function that is
/// missing, the function of a library behind the driver that failed, the call's arguments, or the kernel fault.
/// To be called right after the failing call; reading what the loader itself recorded clears it.
pub fn last_error() -> Option<String> {
    rocm_driver_api::error::take().or_else(|| RUNNING.get()?.last_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_parsed_and_printed() {
        let printed = |text: &str| named(text).map(|choice| choice.to_string());
        assert_eq!(printed(" native"), Ok("native".to_owned()));
        for wrong in ["", "cuda", "Native", "native:", "native:gfx1100", "emulator-gfx1100"] {
            let error = printed(wrong).expect_err(wrong).to_string();
            let value = format!("{DRIVER_VARIABLE}={wrong:?} names no driver");
            for part in [&value, "`native`", "`emulator`", "emulator:gfx1100", "`nvidia`"] {
                assert!(error.contains(part), "{part} is not in {error}");
            }
        }
    }

    #[cfg(feature = "emulator")]
    #[test]
    fn the_software_gpus_argument_is_resolved() {
        let printed = |text: &str| named(text).map(|choice| choice.to_string()).ok();
        assert_eq!(printed("emulator").as_deref(), Some("emulator:gfx1100"));
        assert_eq!(printed("emulator:gfx90a, gfx1100").as_deref(), Some("emulator:gfx90a,gfx1100"));
        for wrong in ["emulator:", "emulator:gfx1100,", "emulator:rdna3"] {
            assert_eq!(printed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_driver_that_is_not_built_is_named_with_its_feature() {
        for driver in drivers::ALL.iter().filter(|driver| driver.driver.is_none()) {
            let feature = driver.feature.expect("a feature brings it");
            let error = named(driver.name).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(
                error.contains("not compiled in") && error.contains(&format!("`rocm-{feature}`")),
                "{error}"
            );
            assert!(known().contains(&format!("not compiled in: feature `rocm-{feature}`")));
        }
    }
}
