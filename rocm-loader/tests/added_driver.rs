//! Tests a driver that the program adds: it is selected by name and serves calls like the built-in ones.
use std::error::Error;
use std::ffi::CStr;

use rocm_driver_api::{Address, Driver, Library, LoadError, Registration, Table, table};
use rocm_loader::{hip, rocblas};

/// The functions of this driver.
#[allow(non_snake_case, reason = "named as in C")]
mod functions {
    use rocm_driver_api::hip::*;

    pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
        // SAFETY: the caller passes a valid pointer.
        unsafe { count.write(1) };
        0
    }

    pub unsafe extern "C" fn hipGetDevicePropertiesR0600(
        prop: *mut hipDeviceProp_tR0600,
        _: c_int,
    ) -> hipError_t {
        // SAFETY: the caller passes a valid pointer.
        let name = unsafe { &mut (*prop).gcnArchName };
        name.iter_mut().zip(b"gfx000").for_each(|(to, byte)| *to = *byte as c_char);
        0
    }

    pub unsafe extern "C" fn hipSetDevice(device: c_int) -> hipError_t {
        if device == 0 { 0 } else { 101 }
    }
}

/// Passes the prototypes of a library with few functions to a macro.
macro_rules! few_functions {
    ($macro:ident $functions:ident) => {
        $macro! { $functions
            required public {
                fn hipGetDeviceCount(count: *mut c_int) -> hipError_t;
                fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_tR0600, deviceId: c_int) -> hipError_t;
                fn hipSetDevice(deviceId: c_int) -> hipError_t;
            }
            optional public {
                fn hipInit(flags: c_uint) -> hipError_t;
            }
        }
    };
}

const HIP: Table = {
    use rocm_driver_api::hip::*;
    few_functions!(table functions)
};

struct Few;

impl Driver for Few {
    fn resolve(&self, argument: Option<&str>) -> Option<String> {
        argument.filter(|argument| *argument == "one").map(str::to_owned)
    }

    fn is_available(&self) -> bool {
        true
    }

    fn start(&self, _: &str) -> Result<(), LoadError> {
        Ok(())
    }

    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError> {
        table::find(&[(Library::Hip, HIP)], library, symbol, "the driver of few functions")
    }

    fn description(&self) -> String {
        "few functions".to_owned()
    }

    fn reasons_for_no_device(&self) -> String {
        "it has one".to_owned()
    }

    fn note(&self) -> Option<&'static str> {
        Some("nothing is computed")
    }
}

static REGISTRATION: Registration =
    Registration { name: "few", usage: "`few:one` (a test)", feature: None, driver: Some(&Few) };

#[test]
fn an_added_driver_serves_the_calls() -> Result<(), Box<dyn Error>> {
    rocm_loader::register(&REGISTRATION);
    let unknown = rocm_loader::select("few").expect_err("it needs an argument").to_string();
    assert!(
        unknown.contains("CANDLE_ROCM_DRIVER=\"few\"") && unknown.contains("`few:one` (a test)"),
        "{unknown}"
    );
    rocm_loader::select("few:one")?;
    let other = rocm_loader::select("native").expect_err("another driver runs").to_string();
    assert!(other.contains("already uses few:one; native"), "{other}");

    let driver = rocm_loader::driver()?;
    assert_eq!((driver.name(), driver.description()), ("few", "few functions".to_owned()));
    assert_eq!((driver.note(), driver.is_software()), (Some("nothing is computed"), false));
    assert!(rocm_loader::is_available() && !rocm_loader::parts::are_tracked());
    assert_eq!(rocm_loader::libraries(), []);
    assert_eq!(rocm_loader::device_archs()?, ["gfx000"]);

    // SAFETY: the functions take integers, or pointers that outlive the calls.
    unsafe {
        assert_eq!((hip::hipSetDevice(0), rocm_loader::bound_device()), (0, Some(0)));
        assert_eq!((hip::hipSetDevice(1), rocm_loader::bound_device()), (101, None));
        // Missing functions return their library's error code.
        assert_eq!(hip::hipInit(0), 801);
        let detail = rocm_loader::last_error().unwrap_or_default();
        assert!(detail.contains("the driver of few functions has no hipInit"), "{detail}");
        assert_eq!(rocblas::rocblas_create_handle(&mut std::ptr::null_mut()), 2);
        assert_eq!(CStr::from_ptr(hip::hipGetErrorName(1)), c"the driver does not have this function");
    }
    Ok(())
}
