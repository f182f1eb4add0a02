//! Modules: code objects loaded on a device, and their kernels as launchable functions.
use super::error::{ErrorCode, HipError, Result, bail, fail};
use super::memory::{Kind, Memory};
use super::{arch::ArchSpec, injection, runtime};
use crate::code_object::{CodeObject, CodeObjectError, Image, Kernel, Symbol, ValueKind};
use crate::exec::{KernelSpec, Program};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A code object loaded on a device. Its memory stays valid until the last launch of its kernels has finished.
pub struct Module {
    pub device: usize,
    pub program: Program,
    kernels: BTreeMap<String, Kernel>,
    symbols: BTreeMap<String, Symbol>,
    image: Image,
    arch: &'static ArchSpec,
}

impl From<CodeObjectError> for HipError {
    fn from(error: CodeObjectError) -> Self {
        let code = match &error {
            CodeObjectError::NotACodeObject(_) | CodeObjectError::Corrupt(_) => ErrorCode::InvalidImage,
            CodeObjectError::Unsupported(_) | CodeObjectError::WrongTarget { .. } => {
                ErrorCode::NoBinaryForGpu
            }
            CodeObjectError::OutOfMemory(_) => ErrorCode::OutOfMemory,
        };
        Self::new(code, error.to_string())
    }
}

impl Module {
    /// Parses, validates and loads a code object.
    ///
    /// # Errors
    /// `InvalidImage` if the bytes are not a complete code object, `NoBinaryForGpu` if it is for another chip or refused by an injected fault,
    /// `OutOfMemory` if the host lacks memory for it.
    pub fn load(memory: &Memory, device: usize, arch: &'static ArchSpec, bytes: &[u8]) -> Result<Self> {
        let object = CodeObject::parse(bytes)?;
        injection::check_code_object(object.target.processor)?;
        if !object.target.runs_on(arch.name(), arch.generic, arch.gcn_arch_name) {
            return Err(CodeObjectError::WrongTarget {
                object: object.target.to_string(),
                device: format!("{} (which also runs {})", arch.gcn_arch_name, arch.generic),
            }
            .into());
        }
        let image = Image::load(&object)?;
        let (text, text_address) = match object.text() {
            Some(text) => (text.data.clone(), image.address(text.address) as u64),
            None => (Vec::new(), 0),
        };
        for segment in &image.segments {
            let kind = Kind::Code { device, writable: segment.writable };
            // SAFETY: the image lives as long as the module, whose drop unregisters the ranges first.
            unsafe { memory.adopt(segment.address, segment.size, kind)? };
        }
        Ok(Self {
            device,
            program: Program::load(arch.family, text, text_address),
            kernels: object.kernels,
            symbols: object.symbols,
            image,
            arch,
        })
    }

    /// Returns a kernel by name.
    ///
    /// # Errors
    /// `NotFound`, which lists some of the module's kernels.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let Some(kernel) = self.kernels.get(name) else {
            let some: Vec<&str> = self.kernels.keys().map(String::as_str).take(5).collect();
            bail!(
                NotFound,
                "no kernel {name:?} among the module's {}: {}...",
                self.kernels.len(),
                some.join(", ")
            );
        };
        let descriptor = &kernel.descriptor;
        let wave32 = descriptor.wave32();
        let unified = self.arch.family.has_unified_registers();
        Ok(Function {
            module: Arc::clone(self),
            spec: KernelSpec {
                name: name.to_string(),
                entry: self.image.address(kernel.entry) as u64,
                vgprs: descriptor.vgprs(if wave32 || unified { 8 } else { 4 }),
                sgprs: kernel.metadata.sgprs,
                lds_bytes: descriptor.lds_bytes,
                private_bytes: descriptor.private_bytes,
                kernarg_bytes: kernel.metadata.kernarg_bytes,
                rsrc1: descriptor.rsrc1,
                rsrc2: descriptor.rsrc2,
                rsrc3: descriptor.rsrc3,
                code_properties: descriptor.code_properties,
                wave32,
            },
            kernel: kernel.clone(),
            arch: self.arch,
        })
    }

    /// Returns the address and the size in bytes of a global variable.
    ///
    /// # Errors
    /// `NotFound` if the module has no such variable.
    pub fn global(&self, name: &str) -> Result<(usize, usize)> {
        match self.symbols.get(name) {
            Some(symbol) if symbol.is_object => {
                Ok((self.image.address(symbol.address), symbol.size as usize))
            }
            _ => fail(ErrorCode::NotFound, format!("the module has no global variable {name:?}")),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(runtime) = runtime() {
            for segment in &self.image.segments {
                runtime.memory.forget(segment.address);
            }
        }
    }
}

/// A kernel of a module.
pub struct Function {
    pub module: Arc<Module>,
    pub spec: KernelSpec,
    pub kernel: Kernel,
    arch: &'static ArchSpec,
}

impl Function {
    /// Returns the arguments that the caller passes, in order.
    pub fn explicit_arguments(&self) -> impl Iterator<Item = &crate::code_object::Argument> {
        self.kernel
            .metadata
            .arguments
            .iter()
            .filter(|argument| !matches!(argument.kind, ValueKind::Hidden(_)))
    }

    /// Returns the occupancy: the number of workgroups of `block` work-items and `dynamic_lds` bytes of dynamic LDS that
    /// fit on a multiprocessor. It is limited by wave slots, vector registers and LDS.
    pub fn workgroups_per_multiprocessor(&self, block: u32, dynamic_lds: usize) -> u32 {
        let arch = self.arch;
        let waves = block.div_ceil(if self.spec.wave32 { 32 } else { 64 }).max(1);
        // Register file and granule are given for waves of the native size. A wave with twice as many lanes needs twice
        // the registers, in granules of half the size.
        let width = if self.spec.wave32 { 1 } else { 64 / arch.wave_size };
        let registers = (self.spec.vgprs * width).next_multiple_of(arch.vgpr_granule);
        let per_simd = (arch.vgprs_per_simd / registers.max(1)).min(arch.waves_per_simd);
        let by_waves = per_simd * arch.simds / waves;
        let lds = self.spec.lds_bytes as usize + dynamic_lds;
        if lds > arch.lds_per_workgroup as usize {
            return 0;
        }
        match lds {
            0 => by_waves,
            _ => by_waves.min((arch.lds_per_multiprocessor as usize / lds) as u32),
        }
    }
}
