//! Prints the driver, versions, devices and the outcome of a few calls, as rocm-rs sees them through the loader. Tests run
//! it with different drivers; users may run it to find out what is missing.
use rocm_loader::hipblaslt as lt;
use rocm_rs::hip;
use rocm_rs::rocblas::ffi;

fn main() {
    println!("available: {}", rocm_loader::is_available());
    match rocm_loader::driver() {
        Ok(driver) => {
            println!("driver: {}: {}", driver.name(), driver.description());
            let versions = driver.versions();
            println!("hip runtime: {:?}", versions.hip_runtime);
            println!("hip driver: {:?}", versions.hip_driver);
            println!("rocblas: {:?}", versions.rocblas);
            println!("miopen: {:?}", versions.miopen);
            println!("hipblaslt version: {:?}", versions.hipblaslt);
            println!("rccl version: {:?}", versions.rccl);
        }
        Err(error) => println!("driver: {error}"),
    }
    match rocm_loader::device_archs() {
        Ok(archs) => {
            println!("devices: {archs:?}");
            for arch in archs {
                let outcome = rocm_loader::driver().and_then(|driver| driver.tensile_files(&arch));
                report(&format!("tensile {arch}"), outcome.map_err(|error| error.to_string()));
            }
        }
        Err(error) => println!("devices: {error}"),
    }
    report("count", hip::device_count().map_err(|error| error.to_string()));
    report("memory", memory().map_err(|error| error.to_string()));
    report("oversize", hip::DeviceMemory::<u8>::new(1 << 50).map(drop).map_err(|error| error.to_string()));
    report("init", hip::init().map_err(|error| error.to_string()));
    report("stream", stream().map_err(|error| error.to_string()));
    report(
        "module",
        hip::Module::load_data(b"not a code object").map(drop).map_err(|error| error.to_string()),
    );
    report("rocblas", rocblas());
    report("hipblaslt", hipblaslt());
    report("miopen", rocm_rs::miopen::Handle::new().map(drop).map_err(|error| error.to_string()));
}

/// Allocates and frees device memory.
fn memory() -> hip::Result<usize> {
    hip::DeviceMemory::<f32>::new(256).map(|memory| memory.size())
}

/// Creates a stream and waits for it.
fn stream() -> hip::Result<()> {
    hip::Device::new(0)?.get_stream()?.synchronize()
}

/// Creates and destroys a rocBLAS handle.
fn rocblas() -> Result<(), String> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` outlives both calls.
    unsafe {
        match ffi::rocblas_create_handle(&mut handle) {
            ffi::rocblas_status__rocblas_status_success => {}
            status => return Err(format!("rocBLAS status {status}")),
        }
        ffi::rocblas_destroy_handle(handle);
    }
    Ok(())
}

/// Creates and destroys a hipBLASLt handle.
fn hipblaslt() -> Result<(), String> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` outlives both calls.
    unsafe {
        match lt::hipblasLtCreate(&mut handle) {
            lt::HIPBLAS_STATUS_SUCCESS => {}
            status => return Err(format!("hipBLASLt status {status}")),
        }
        lt::hipblasLtDestroy(handle);
    }
    Ok(())
}

fn report<T: std::fmt::Debug>(name: &str, outcome: Result<T, String>) {
    match outcome {
        Ok(value) => println!("{name}: ok {value:?}"),
        Err(error) => println!("{name}: {error} [{}]", rocm_loader::last_error().unwrap_or_default()),
    }
}
