//! GPU under test, and the kernels compiled for it.
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::rocm::rocm_rs::hip::bindings;
use candle_core::rocm::{LaunchConfig, RocmDevice, RocmKernel, hip_kernels};

/// Names of the sources; each is compiled to a code object per target.
pub const MODULES: [&str; 3] = ["instructions", "matrices", "portable"];

pub struct Gpu {
    pub device: RocmDevice,
    objects: BTreeMap<&'static str, Vec<u8>>,
}

/// Number of workgroups, and lanes per workgroup.
#[derive(Clone, Copy)]
pub struct Grid {
    pub groups: u32,
    pub lanes: u32,
}

impl Gpu {
    /// Reads the code objects for this GPU; fails if the folder has none.
    pub fn open(device: RocmDevice, objects: &Path) -> Result<Self> {
        let mut found = BTreeMap::new();
        for module in MODULES {
            let mut targets = BTreeMap::new();
            let entries =
                std::fs::read_dir(objects).with_context(|| format!("cannot read {}", objects.display()))?;
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                if let Some(target) = name.strip_prefix(module).and_then(|rest| rest.strip_prefix('-')) {
                    targets.insert(target.to_owned(), path);
                }
            }
            let names: Vec<&str> = targets.keys().map(String::as_str).collect();
            let best = hip_kernels::best_target(device.arch(), &names);
            match best.and_then(|target| targets.get(target)) {
                Some(path) => found.insert(module, std::fs::read(path)?),
                // The other modules use instructions that only AMD GPUs have.
                None if module != "portable" => None,
                None => bail!(
                    "{} has code objects for {names:?}, but not for {}: compile them with --archs {}",
                    objects.display(),
                    device.arch(),
                    device.arch()
                ),
            };
        }
        Ok(Self { device, objects: found })
    }

    /// Returns the architecture without features such as `:xnack-`.
    pub fn arch(&self) -> &str {
        self.device.arch().split(':').next().unwrap_or_default()
    }

    pub fn is_software(&self) -> bool {
        self.device.driver_name() == "emulator"
    }

    /// Returns the number of lanes of a wave.
    pub fn lanes(&self) -> u32 {
        if self.arch().starts_with("gfx9") { 64 } else { 32 }
    }

    /// Returns a kernel, or `None` if it does not exist for this GPU.
    pub fn kernel(&self, module: &str, name: &str) -> Result<Option<RocmKernel<'_>>> {
        let Some(object) = self.objects.get(module) else { return Ok(None) };
        let known = hip_kernels::metadata::kernels(object).map_err(anyhow::Error::msg)?;
        if !known.iter().any(|kernel| kernel.name == name) {
            return Ok(None);
        }
        Ok(Some(self.device.custom_kernel(module, object, name)?))
    }

    /// Returns a kernel that exists for every GPU.
    pub fn portable(&self, name: &str) -> Result<RocmKernel<'_>> {
        self.kernel("portable", name)?.with_context(|| format!("portable.cu has no kernel {name}"))
    }

    /// Runs a kernel with parameters (in, out, count) on cases of equal length; it writes `outputs` words per case.
    pub fn run(
        &self,
        module: &str,
        name: &str,
        cases: &[Vec<u32>],
        outputs: usize,
        grid: Grid,
    ) -> Result<Option<Vec<u32>>> {
        let Some(kernel) = self.kernel(module, name)? else { return Ok(None) };
        ensure!(
            !cases.is_empty() && cases.iter().all(|case| case.len() == cases[0].len()),
            "{name}: cases are empty or differ in length"
        );
        let (input, count) = (self.device.clone_htod(&cases.concat())?, cases.len() as u32);
        let output = self.device.alloc_zeros::<u32>(cases.len() * outputs)?;
        let (from, to) = (input.ptr(), output.ptr());
        // SAFETY: the kernel's parameters are (const unsigned *, unsigned *, unsigned). It reads `count`
        // cases, which have the expected length, and writes `outputs` words for each.
        unsafe { kernel.launch(grid.config()).arg(&from).arg(&to).arg(&count).run()? };
        Ok(Some(self.device.clone_dtoh(&output)?))
    }

    /// Keeps the GPU busy on the device's stream with one wave for `steps` steps.
    pub fn spin(&self, steps: u32) -> Result<()> {
        let kernel = self.portable("spin")?;
        let scratch = self.device.alloc_zeros::<u32>(64)?;
        // SAFETY: at most 64 lanes write a word each; the memory is only reused in stream order.
        unsafe {
            kernel
                .launch(Grid { groups: 1, lanes: self.lanes() }.config())
                .arg(&scratch.ptr())
                .arg(&steps)
                .run()?
        };
        Ok(())
    }

    /// Returns a number of steps that keeps the GPU busy for at least `time`.
    pub fn steps_for(&self, time: Duration) -> Result<u32> {
        let mut steps = 1u32 << 12;
        loop {
            let begun = Instant::now();
            self.spin(steps)?;
            self.synchronize()?;
            let took = begun.elapsed();
            if took >= time || steps >= 1 << 30 {
                return Ok(steps);
            }
            steps *= 2;
        }
    }

    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream belongs to the device.
        let code = unsafe { bindings::hipStreamSynchronize(self.stream()) };
        ensure!(code == 0, "hipStreamSynchronize: HIP error {code}");
        Ok(())
    }

    pub fn stream(&self) -> bindings::hipStream_t {
        self.device.stream().as_raw()
    }
}

impl Grid {
    pub fn config(self) -> LaunchConfig {
        LaunchConfig { grid: (self.groups, 1, 1), block: (self.lanes, 1, 1), lds_bytes: 0 }
    }
}

/// Replaces every NaN of f32 by the same bits.
pub fn one_nan(word: u32) -> u32 {
    if f32::from_bits(word).is_nan() { 0x7fc0_0000 } else { word }
}

/// Returns the name of a HIP error code.
pub fn code_name(code: c_uint) -> String {
    match code {
        0 => "hipSuccess".to_owned(),
        600 => "hipErrorNotReady".to_owned(),
        700 => "hipErrorIllegalAddress".to_owned(),
        719 => "hipErrorLaunchFailure".to_owned(),
        other => format!("HIP error {other}"),
    }
}
