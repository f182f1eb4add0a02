//! The kernels a device has loaded: found without a lock or an allocation after their first use.
use super::error::notes;
use super::RocmError;
use rocm_rs::hip;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which module a kernel is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleId<'a> {
    /// One that ships with this crate, compiled for every arch of the binary.
    Shipped(hip_kernels::Module),
    /// The caller's own. The code object is a part of what it is: two of the same name never meet.
    Custom { name: &'a str, code_object: &'a [u8] },
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
            Self::Custom { name, .. } => name,
        }
    }
}

/// A [`ModuleId`] that outlives the call. Modules and kernels share the copy of a code object.
#[derive(Clone)]
enum OwnedId {
    Shipped(hip_kernels::Module),
    Custom { name: Arc<str>, code_object: Arc<[u8]> },
}

impl OwnedId {
    fn of(id: ModuleId) -> Self {
        match id {
            ModuleId::Shipped(module) => Self::Shipped(module),
            ModuleId::Custom { name, code_object } => {
                Self::Custom { name: name.into(), code_object: code_object.into() }
            }
        }
    }

    /// Compares all bytes of a code object: an address may hold another one by now.
    fn is(&self, id: ModuleId) -> bool {
        match (self, id) {
            (Self::Shipped(own), ModuleId::Shipped(other)) => *own == other,
            (Self::Custom { name, code_object }, ModuleId::Custom { name: other, code_object: bytes }) => {
                **name == *other && **code_object == *bytes
            }
            _ => false,
        }
    }
}

/// A kernel, ready to launch on the device that loaded it.
pub(super) struct Kernel {
    module: OwnedId,
    name: Arc<str>,
    pub(super) function: hip::Function,
}

// SAFETY: the function handle belongs to a module that lives as long as the device, and HIP allows it to be
// launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; launching does not change the handle.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn is(&self, module: ModuleId, name: &[&str]) -> bool {
        is_joined(&self.name, name) && self.module.is(module)
    }
}

/// Loaded modules; a loaded one stays until the device goes.
#[derive(Default)]
struct Modules(Vec<LoadedModule>);

struct LoadedModule {
    id: OwnedId,
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

    /// Finds or loads a kernel. `load` makes the module the first time it is needed, `device` is for
    /// messages. The caller has bound the device.
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
        let index = match modules.0.iter().position(|loaded| loaded.id.is(module)) {
            Some(index) => index,
            None => {
                let loaded = load()?;
                modules.0.push(LoadedModule { id: OwnedId::of(module), module: loaded });
                modules.0.len() - 1
            }
        };
        let joined = name.join("_");
        let function = modules.0[index].module.get_function(&joined).map_err(|error| {
            // Clears the error that HIP keeps for the next caller of hipGetLastError.
            let _ = hip::get_last_error();
            match module {
                _ if error.code() != hip::bindings::hipError_t_hipErrorNotFound => RocmError::Hip {
                    call: format!("hipModuleGetFunction({joined})"),
                    device: device(),
                    notes: notes(Some(error.code())),
                    error,
                },
                ModuleId::Shipped(module) => RocmError::MissingKernel {
                    module: module.name().to_string(),
                    kernel: joined.clone(),
                    device: device(),
                },
                ModuleId::Custom { name, .. } => RocmError::CustomModule {
                    module: name.to_string(),
                    device: device(),
                    reason: format!("it has no kernel {joined} (declared as extern \"C\" __global__?)"),
                },
            }
        })?;
        let kernel = Kernel { module: modules.0[index].id.clone(), name: joined.into(), function };
        // The mutex makes this the only writer: a slot that is free stays so until it is filled here.
        match self.probe(module, name).find(|slot| slot.get().is_none()) {
            Some(slot) => Ok(slot.get_or_init(|| kernel)),
            None => Err(RocmError::Launch {
                kernel: kernel.name.to_string(),
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
