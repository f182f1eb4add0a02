//! GPU that tests run on, shared by all tests of a process.
use candle_core::Device;
use candle_core::rocm::RocmDevice;
use once_cell::sync::Lazy;
use rocm_loader::LoadError;

/// Software GPU that is used if the machine has no AMD GPU.
const FALLBACK_ARCH: &str = "gfx1100";

/// Device, opened on first use: an AMD GPU if there is one, otherwise the software GPU; or the reason why
/// neither works.
static SHARED: Lazy<Result<RocmDevice, String>> = Lazy::new(|| {
    // If a driver is selected explicitly and fails, tests must fail instead of using another one.
    if matches!(rocm_loader::driver(), Err(LoadError::NoGpu { .. })) {
        rocm_loader::select(&format!("emulator:{FALLBACK_ARCH}")).map_err(|error| error.to_string())?;
    }
    let open = || RocmDevice::new_checked(RocmDevice::default_ordinal()?);
    let device = open().map_err(|error: candle_core::Error| error.to_string())?;
    let mib = |bytes: usize| bytes >> 20;
    let described = device.memory_info().and_then(|(free, total)| {
        let (arch, name, driver) = (device.arch(), device.name(), device.driver_name());
        let safe = mib(device.safe_alloc_size()?);
        Ok(format!(
            "rocm:{} {name}, {arch}, {driver} driver: {} of {} MiB free, safe allocation size {safe} MiB",
            device.ordinal(),
            mib(free),
            mib(total),
        ))
    });
    println!("{}", described.map_err(|error| error.to_string())?);
    Ok(device)
});

/// Returns the environment variable that makes a child process use the fallback GPU, if this process uses it.
pub fn fallback_variable() -> Option<(&'static str, String)> {
    let software = device().as_rocm_device().is_ok_and(|device| device.driver_name() == "emulator");
    let is_selected = std::env::var_os(rocm_loader::DRIVER_VARIABLE).is_some();
    (software && !is_selected).then(|| (rocm_loader::DRIVER_VARIABLE, format!("emulator:{FALLBACK_ARCH}")))
}

/// Returns the device, for tests that may run concurrently.
///
/// # Panics
/// If there is no AMD GPU and the software GPU is not compiled in.
pub fn device() -> Device {
    Device::Rocm(SHARED.clone().expect("an AMD GPU or the software GPU"))
}

/// Selects the driver that its variable names, otherwise `count` devices of the software GPU. Returns how many of `count`
/// devices there are.
///
/// # Panics
/// If the software GPU does not work.
pub fn select_devices(count: usize) -> usize {
    if std::env::var_os(rocm_loader::DRIVER_VARIABLE).is_none() {
        let software = format!("emulator:{}", vec![FALLBACK_ARCH; count].join(","));
        rocm_loader::select(&software).expect("the software GPU");
    }
    (0..count).take_while(|ordinal| Device::new_rocm(*ordinal).is_ok()).count()
}

/// Returns true if the selected driver is the software GPU; otherwise prints why the test does not apply.
pub fn on_software_gpu(why: &str) -> bool {
    let is_software = rocm_loader::driver().is_ok_and(|driver| driver.is_software());
    if !is_software {
        println!("not applicable: {why}");
    }
    is_software
}

/// Handle to the GPU for one test. Dropping it checks that the test has released all memory.
pub struct Gpu {
    device: RocmDevice,
    /// Bytes in use by tensors when the test began.
    live: usize,
    /// Bytes free on the GPU when the test began.
    free: usize,
}

/// Returns the GPU. Without an AMD GPU and a compiled-in software GPU, prints a message and returns `None`.
pub fn gpu() -> Option<Gpu> {
    match &*SHARED {
        Ok(device) => {
            device.empty_cache().expect("empty the cache");
            let (free, _) = device.memory_info().expect("read free memory");
            Some(Gpu { device: device.clone(), live: device.memory_stats().live, free })
        }
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

impl Gpu {
    pub fn rocm(&self) -> &RocmDevice {
        &self.device
    }

    pub fn device(&self) -> Device {
        Device::Rocm(self.device.clone())
    }

    /// Panics if the process has made a call that synchronizes with more than its own stream.
    #[track_caller]
    pub fn assert_only_own_stream(&self) {
        const SYNCHRONIZING: [&str; 6] = [
            "hipDeviceSynchronize",
            "hipMemcpy",
            "hipMemset",
            "hipMemcpyHtoD",
            "hipMemcpyDtoH",
            "hipMemcpyDtoD",
        ];
        for (name, calls) in rocm_loader::symbols::calls().filter(|(name, _)| SYNCHRONIZING.contains(name)) {
            assert_eq!(calls, 0, "calls of {name}");
        }
        assert_eq!(rocm_emulator::null_stream_uses(), 0, "uses of the null stream");
    }

    /// Panics if memory use has grown by more than `percent` of the GPU's memory since the test began.
    #[track_caller]
    pub fn assert_no_leak(&self, percent: f64) {
        self.device.empty_cache().expect("empty the cache");
        let (free, total) = self.device.memory_info().expect("read free memory");
        let allowed = (total as f64 * percent / 100.0) as usize;
        let live = self.device.memory_stats().live;
        assert!(live <= self.live + allowed, "tensors use {live} bytes, before the test {}", self.live);
        assert!(free + allowed >= self.free, "{free} bytes are free, before the test {}", self.free);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Other programs may allocate memory on a real GPU, but not on the software GPU.
            let software = self.device.driver_name() == "emulator";
            self.assert_no_leak(if software { 0.0 } else { 1.0 });
            self.assert_only_own_stream();
        }
    }
}
