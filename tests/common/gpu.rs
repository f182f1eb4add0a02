//! The GPU that tests run on, shared by all tests of a process.
use candle_core::Device;
use candle_core::rocm::RocmDevice;
use once_cell::sync::Lazy;
use rocm_loader::LoadError;

/// The software GPU that stands in where there is no other.
const STAND_IN: &str = "gfx1100";

/// Opened once: an AMD GPU if there is one, else the software GPU. Why there is neither, otherwise.
static SHARED: Lazy<Result<RocmDevice, String>> = Lazy::new(|| {
    // A driver that is named and fails is a failure, not a reason to take another.
    if matches!(rocm_loader::driver(), Err(LoadError::NoGpu { .. })) {
        rocm_loader::select(&format!("emulator:{STAND_IN}")).map_err(|error| error.to_string())?;
    }
    let open = || RocmDevice::new_checked(RocmDevice::default_ordinal()?);
    let device = open().map_err(|error: candle_core::Error| error.to_string())?;
    let mib = |bytes: usize| bytes >> 20;
    let described = device.memory_info().and_then(|(free, total)| {
        let (arch, name, driver) = (device.arch(), device.name(), device.driver_name());
        let safe = mib(device.safe_alloc_size()?);
        Ok(format!(
            "rocm:{} {name}, {arch}, {driver} driver: {} MiB free of {}, {safe} MiB may safely be asked for at once",
            device.ordinal(),
            mib(free),
            mib(total),
        ))
    });
    println!("{}", described.map_err(|error| error.to_string())?);
    Ok(device)
});

/// The variable that has a program run on the stand-in, where it is one.
pub fn stand_in() -> Option<(&'static str, String)> {
    let software = device().as_rocm_device().is_ok_and(|device| device.driver_name() == "emulator");
    let named = std::env::var_os(rocm_loader::DRIVER_VARIABLE).is_some();
    (software && !named).then(|| (rocm_loader::DRIVER_VARIABLE, format!("emulator:{STAND_IN}")))
}

/// The device, for tests that may run beside each other. The software GPU is compiled in, so there is one.
pub fn device() -> Device {
    Device::Rocm(SHARED.clone().expect("an AMD GPU or the software GPU"))
}

/// The GPU for the length of one test. At its end nothing may be left on it.
pub struct Gpu {
    device: RocmDevice,
    /// In use when the test began.
    live: usize,
    free: usize,
}

/// The GPU, or `None` after a message if this machine has none and no software GPU is compiled in.
pub fn gpu() -> Option<Gpu> {
    match &*SHARED {
        Ok(device) => {
            device.empty_cache().expect("the GPU gives memory back");
            let (free, _) = device.memory_info().expect("the GPU says how much memory is free");
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

    /// Fails if anything waited for more than its own stream, since the process began.
    #[track_caller]
    pub fn assert_only_own_stream(&self) {
        const WAITING: [&str; 6] = [
            "hipDeviceSynchronize",
            "hipMemcpy",
            "hipMemset",
            "hipMemcpyHtoD",
            "hipMemcpyDtoH",
            "hipMemcpyDtoD",
        ];
        for (name, calls) in rocm_loader::symbols::calls().filter(|(name, _)| WAITING.contains(name)) {
            assert_eq!(calls, 0, "calls of {name}");
        }
        assert_eq!(rocm_emulator::null_stream_uses(), 0, "uses of the null stream");
    }

    /// Fails if more than `percent` of the GPU's memory is in use beyond what was when the test began.
    #[track_caller]
    pub fn assert_no_leak(&self, percent: f64) {
        self.device.empty_cache().expect("the GPU gives memory back");
        let (free, total) = self.device.memory_info().expect("the GPU says how much memory is free");
        let allowed = (total as f64 * percent / 100.0) as usize;
        let live = self.device.memory_stats().live;
        assert!(live <= self.live + allowed, "tensors hold {live} bytes, {} before the test", self.live);
        assert!(free + allowed >= self.free, "{free} bytes are free, {} before the test", self.free);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Other programs may take a little on a real card; nothing on the software GPU.
            let software = self.device.driver_name() == "emulator";
            self.assert_no_leak(if software { 0.0 } else { 1.0 });
            self.assert_only_own_stream();
        }
    }
}
