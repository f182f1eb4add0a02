//! The kernels a device has loaded: found without a lock or an allocation after their first use.
use super::RocmError;
use rocm_rs::hip;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Which module a kernel is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleId<'a> {
    /// One that ships with this crate, compiled for every arch of the binary.
    Shipped(hip_kernels::Module),
    /// One that the caller loaded from its own code object, under this name.
    Custom(&'a str),
}

impl From<hip_kernels::Module> for ModuleId<'_> {
    fn from(module: hip_kernels::Module) -> Self {
        Self::Shipped(module)
    }
}

impl<'a> ModuleId<'a> {
    pub fn name(&self) -> &'a str {
        match self {
            Self::Shipped(module) => module.name(),
            Self::Custom(name) => name,
        }
    }

    fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }
}

/// A kernel, ready to launch on the device that loaded it.
pub(super) struct Kernel {
    module: String,
    custom: bool,
    name: String,
    pub(super) function: hip::Function,
}

// SAFETY: the function handle belongs to a module that lives as long as the device, and HIP allows it to be
// launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; launching does not change the handle.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn is(&self, module: ModuleId, name: &[&str]) -> bool {
        self.custom == module.is_custom() && self.module == module.name() && is_joined(&self.name, name)
    }
}

/// Loaded modules; a loaded one stays until the device goes.
#[derive(Default)]
struct Modules(Vec<LoadedModule>);

struct LoadedModule {
    name: String,
    custom: bool,
    module: hip::Module,
}

// SAFETY: a module handle is not bound to a thread; it is only touched under the mutex around `Modules`.
unsafe impl Send for LoadedModule {}

/// Slots of the table: four times the kernels of all shipped modules, so that probes stay short.
const SLOTS: usize = 8192;

/// An open-addressing table that only grows: readers need no lock, writers take turns.
pub(super) struct KernelCache {
    slots: Box<[OnceLock<Kernel>]>,
    modules: Mutex<Modules>,
}

impl KernelCache {
    pub(super) fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| OnceLock::new()).collect(), modules: Mutex::new(Modules::default()) }
    }

    /// The kernel whose name is `name` joined by underscores, if it has been used before.
    pub(super) fn get(&self, module: ModuleId, name: &[&str]) -> Option<&Kernel> {
        for slot in self.probe(module, name) {
            match slot.get() {
                Some(kernel) if kernel.is(module, name) => return Some(kernel),
                Some(_) => {}
                None => return None,
            }
        }
        None
    }

    /// Finds or loads a kernel. `load` makes the module the first time it is needed, `device` is for messages.
    /// The caller has bound the device.
    pub(super) fn load(
        &self,
        module: ModuleId,
        name: &[&str],
        device: &dyn Fn() -> String,
        load: impl FnOnce() -> crate::Result<hip::Module>,
    ) -> crate::Result<&Kernel> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.get(module, name) {
            return Ok(kernel);
        }
        let known = modules.0.iter().position(|m| m.custom == module.is_custom() && m.name == module.name());
        let index = match known {
            Some(index) => index,
            None => {
                let loaded = load()?;
                modules.0.push(LoadedModule {
                    name: module.name().to_string(),
                    custom: module.is_custom(),
                    module: loaded,
                });
                modules.0.len() - 1
            }
        };
        let joined = name.join("_");
        let function = modules.0[index].module.get_function(&joined).map_err(|_| {
            // Clears the error that HIP keeps for the next caller of hipGetLastError.
            let _ = hip::get_last_error();
            RocmError::MissingKernel {
                module: module.name().to_string(),
                kernel: joined.clone(),
                device: device(),
            }
        })?;
        let kernel =
            Kernel { module: module.name().to_string(), custom: module.is_custom(), name: joined, function };
        // The mutex makes this the only writer: a slot that is free stays so until it is filled here.
        match self.probe(module, name).find(|slot| slot.get().is_none()) {
            Some(slot) => Ok(slot.get_or_init(|| kernel)),
            None => Err(RocmError::Launch {
                kernel: kernel.name,
                message: format!("more than {SLOTS} different kernels on {}", device()),
            }
            .into()),
        }
    }

    /// Slots in the order in which a kernel is looked for: from its hash (FNV-1a) on, once around.
    fn probe<'a>(&'a self, module: ModuleId, name: &[&str]) -> impl Iterator<Item = &'a OnceLock<Kernel>> {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |text: &str| {
            for byte in text.bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        eat(module.name());
        for part in name {
            eat("_");
            eat(part);
        }
        let start = (hash ^ (hash >> 32)) as usize % SLOTS;
        self.slots[start..].iter().chain(&self.slots[..start])
    }
}

/// Whether `name` is `parts` joined by underscores.
fn is_joined(name: &str, parts: &[&str]) -> bool {
    let mut rest = name;
    for (i, part) in parts.iter().enumerate() {
        let after = if i == 0 { Some(rest) } else { rest.strip_prefix('_') };
        match after.and_then(|after| after.strip_prefix(part)) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::is_joined;

    #[test]
    fn names_compare_by_their_parts() {
        assert!(is_joined("cast_f32_f16", &["cast", "f32", "f16"]));
        assert!(is_joined("softmax_f32", &["softmax_f32"]));
        assert!(!is_joined("cast_f32_f16", &["cast", "f32"]));
        assert!(!is_joined("cast_f32", &["cast", "f32", "f16"]));
        assert!(!is_joined("castf32", &["cast", "f32"]));
    }
}
