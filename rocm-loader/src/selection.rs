//! The driver of this process: selected once, by a variable, by the program, or by detecting a GPU.
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError};

use rocm_driver_api::{DRIVER_VARIABLE, Driver, LibraryFile, LoadError, Registration, SuballocationTracker};

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

/// The driver of this process, which dereferences to [`Driver`].
pub struct RunningDriver {
    choice: Choice,
    /// Cached, because it is read for every suballocation.
    suballocation_tracker: Option<&'static dyn SuballocationTracker>,
}

impl RunningDriver {
    /// Returns the driver's name in [`DRIVER_VARIABLE`], without an argument.
    pub fn name(&self) -> &'static str {
        self.choice.name
    }

    /// Returns the driver's tracker of suballocations.
    #[inline]
    pub(crate) fn suballocation_tracker(&self) -> Option<&'static dyn SuballocationTracker> {
        self.suballocation_tracker
    }
}

impl Deref for RunningDriver {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        self.choice.driver
    }
}

static RUNNING: OnceLock<RunningDriver> = OnceLock::new();
/// Held while a driver starts. A failure is not cached, so a program may still select another driver.
static STARTING: Mutex<()> = Mutex::new(());
/// Drivers that the program added.
static ADDED: Mutex<Vec<&'static Registration>> = Mutex::new(Vec::new());

/// Adds a driver to those that can be selected by name. If a name is registered twice, the first registration is used.
pub fn register(driver: &'static Registration) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(driver);
}

fn registrations() -> Vec<&'static Registration> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    drivers::ALL.iter().chain(added.iter()).copied().collect()
}

/// Lists the values of [`DRIVER_VARIABLE`], with a note on the drivers that this build lacks.
fn known() -> String {
    let describe = |driver: &&Registration| match (driver.driver, driver.feature) {
        (None, Some(feature)) => format!("{} [not compiled in: feature `rocm-{feature}`]", driver.usage),
        _ => driver.usage.to_owned(),
    };
    registrations().iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Returns the driver that `value`, a value of [`DRIVER_VARIABLE`], names.
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

/// Returns the driver that the environment names, or else the first that detects its GPU.
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

/// Returns the driver of this process. The first call selects it: the one named by [`DRIVER_VARIABLE`] if that is set,
/// otherwise the first that detects its GPU.
///
/// # Errors
/// There is no GPU, a library is missing, or the named driver is unknown, not compiled in or rejects its argument. The
/// text names the cause and the remedy.
pub fn driver() -> Result<&'static RunningDriver, LoadError> {
    match RUNNING.get() {
        Some(driver) => Ok(driver),
        None => start(found),
    }
}

/// Selects the driver before its first use. `choice` has the form of [`DRIVER_VARIABLE`], which is then ignored. Selecting
/// the running driver again is not an error.
///
/// # Errors
/// [`LoadError::AlreadySelected`] if another driver runs, and the errors of [`driver`].
pub fn select(choice: &str) -> Result<(), LoadError> {
    let wanted = named(choice)?;
    let running = start(|| Ok(wanted.clone()))?;
    match (running.choice.to_string(), wanted.to_string()) {
        (current, wanted) if current != wanted => Err(LoadError::AlreadySelected { current, wanted }),
        _ => Ok(()),
    }
}

/// Returns the running driver, if any, without starting one.
#[inline]
pub(crate) fn running() -> Option<&'static RunningDriver> {
    RUNNING.get()
}

/// Starts a driver unless one is already running.
fn start(choose: impl FnOnce() -> Result<Choice, LoadError>) -> Result<&'static RunningDriver, LoadError> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = RUNNING.get() {
        return Ok(driver);
    }
    let choice = choose()?;
    choice.driver.start(&choice.argument)?;
    let suballocation_tracker = choice.driver.suballocation_tracker();
    Ok(RUNNING.get_or_init(|| RunningDriver { choice, suballocation_tracker }))
}

/// Returns false if a driver, a device or the runtime is missing. Opens no library and starts no driver, so true is no
/// guarantee; [`crate::device_archs`] gives a definite answer and names the cause.
pub fn is_available() -> bool {
    match RUNNING.get() {
        Some(driver) => driver.is_available(),
        None => found().is_ok_and(|choice| choice.driver.is_available()),
    }
}

/// Lists the libraries behind the running driver; if none runs, those of the first driver in this build.
pub fn libraries() -> Vec<LibraryFile> {
    let first = || drivers::ALL.iter().find_map(|registration| registration.driver);
    let driver = RUNNING.get().map(|running| &**running).or_else(first);
    driver.map(Driver::libraries).unwrap_or_default()
}

/// Returns details of the call that just failed on this thread: the missing library or function, the failing function
/// of a library behind the driver, the call's arguments, or the kernel fault. Call it right after the failing call;
/// reading a detail that the loader recorded clears it.
pub fn last_error() -> Option<String> {
    rocm_driver_api::error::take().or_else(|| RUNNING.get()?.last_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names_are_parsed_and_printed() {
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
    fn the_error_for_a_driver_that_is_not_compiled_in_names_its_feature() {
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
