//! Resource usage of each kernel on each target, as a table.

use std::fmt;

use amdgpu_code_object::{KernelMetadata, kernels};

use crate::Target;

/// Register file of one SIMD unit: sizes in registers per lane, or per wave for scalar registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RegisterFile {
    vgprs: u32,
    vgpr_granule: u32,
    /// Scalar registers shared by the waves; 0 if every wave has a full set.
    sgprs: u32,
    sgpr_granule: u32,
    max_waves: u32,
}

/// Returns the register file for the compiler's default wave size (LLVM's AMDGPUUsage and GCNSubtarget; the ISA guides'
/// "vector register allocation"). A generic target has that of the smallest member of its family.
fn register_file(target: &Target) -> RegisterFile {
    let rdna =
        |vgprs, vgpr_granule| RegisterFile { vgprs, vgpr_granule, sgprs: 0, sgpr_granule: 1, max_waves: 16 };
    match (target.major(), target.name()) {
        // One quarter of a multiprocessor (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
        _ if target.is_nvidia() => {
            RegisterFile { vgprs: 512, vgpr_granule: 8, sgprs: 0, sgpr_granule: 1, max_waves: 16 }
        }
        (9, "gfx90a" | "gfx940" | "gfx941" | "gfx942" | "gfx950" | "gfx9-4-generic") => {
            RegisterFile { vgprs: 512, vgpr_granule: 8, sgprs: 800, sgpr_granule: 16, max_waves: 8 }
        }
        (9, _) => RegisterFile { vgprs: 256, vgpr_granule: 4, sgprs: 800, sgpr_granule: 16, max_waves: 10 },
        (10, _) => rdna(1024, 16),
        (11, "gfx1100" | "gfx1101" | "gfx1151") => rdna(1536, 24),
        (11, _) => rdna(1024, 16),
        _ => rdna(1536, 24),
    }
}

/// Resource usage of one kernel on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelResources {
    /// Name of the module.
    pub module: String,
    /// Name of the target.
    pub target: String,
    /// The compiler's figures.
    pub kernel: KernelMetadata,
    /// Maximum number of waves per SIMD unit, limited by registers. LDS and the size of the workgroup, which the host
    /// chooses, may lower it.
    pub max_waves: u32,
}

impl KernelResources {
    /// Reads the figures of all kernels in one code object.
    ///
    /// # Errors
    /// A message about the code object.
    pub fn read(module: &str, target: &Target, code_object: &[u8]) -> Result<Vec<Self>, String> {
        let file = register_file(target);
        Ok(kernels(code_object)?
            .into_iter()
            .map(|kernel| Self {
                module: module.to_owned(),
                target: target.name().to_owned(),
                max_waves: max_waves(&kernel, file),
                kernel,
            })
            .collect())
    }

    /// Returns the columns of the table.
    pub(crate) fn figures(&self) -> [u32; 7] {
        let KernelMetadata { vgprs, agprs, sgprs, lds, scratch, .. } = self.kernel;
        [vgprs, agprs, sgprs, lds, scratch, self.spills(), self.max_waves]
    }

    /// Returns the number of registers that are spilled to memory.
    pub fn spills(&self) -> u32 {
        self.kernel.vgpr_spills + self.kernel.sgpr_spills
    }
}

fn max_waves(kernel: &KernelMetadata, file: RegisterFile) -> u32 {
    let fitting = |total: u32, granule: u32, used: u32| total / used.max(1).next_multiple_of(granule);
    let by_vgprs = fitting(file.vgprs, file.vgpr_granule, kernel.vgprs);
    let by_sgprs = match file.sgprs {
        0 => file.max_waves,
        sgprs => fitting(sgprs, file.sgpr_granule, kernel.sgprs),
    };
    by_vgprs.min(by_sgprs).min(file.max_waves)
}

/// Resource usage of all kernels of a build; [`fmt::Display`] writes one line per kernel and target.
#[derive(Debug, Clone, Default)]
pub struct ResourceTable(pub Vec<KernelResources>);

impl fmt::Display for ResourceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|row| row.kernel.name.len()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "{:<10} {:<16} {:<width$} {:>5} {:>5} {:>5} {:>6} {:>7} {:>6} {:>5}",
            "module", "target", "kernel", "vgprs", "agprs", "sgprs", "lds", "scratch", "spills", "waves"
        )?;
        for row in &self.0 {
            let [vgprs, agprs, sgprs, lds, scratch, spills, waves] = row.figures();
            writeln!(
                f,
                "{:<10} {:<16} {:<width$} {vgprs:>5} {agprs:>5} {sgprs:>5} {lds:>6} {scratch:>7} {spills:>6} {waves:>5}",
                row.module, row.target, row.kernel.name
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(vgprs: u32, sgprs: u32) -> KernelMetadata {
        KernelMetadata {
            name: "k".to_owned(),
            vgprs,
            agprs: 0,
            sgprs,
            vgpr_spills: 0,
            sgpr_spills: 0,
            lds: 0,
            scratch: 0,
            arguments: 0,
            wave_size: 32,
            max_workgroup: 1024,
            explicit: Vec::new(),
        }
    }

    #[test]
    fn waves_follow_the_register_files() {
        // Hand-computed from the allocation granules.
        let cases = [
            ("gfx1100", 1, 16, 16),
            ("gfx1100", 96, 16, 16),
            ("gfx1100", 97, 16, 12), // 120 registers
            ("gfx1100", 192, 16, 8),
            ("gfx11-generic", 97, 16, 9), // 112 of 1024
            ("gfx1030", 64, 16, 16),
            ("gfx1030", 65, 16, 12), // 80 of 1024
            ("gfx90a", 64, 16, 8),
            ("gfx90a", 128, 16, 4),
            ("gfx908", 24, 16, 10),
            ("gfx908", 128, 16, 2),
            ("gfx908", 16, 100, 7), // 112 of 800 scalar registers
        ];
        for (target, vgprs, sgprs, waves) in cases {
            let file = register_file(&Target::parse(target).unwrap());
            assert_eq!(max_waves(&kernel(vgprs, sgprs), file), waves, "{target} with {vgprs} vgprs");
        }
    }

    #[test]
    fn the_table_has_a_line_per_kernel() {
        let row = KernelResources {
            module: "sort".to_owned(),
            target: "gfx90a".to_owned(),
            kernel: kernel(7, 20),
            max_waves: 8,
        };
        let text = ResourceTable(vec![row]).to_string();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["sort", "gfx90a", "k", "7", "0", "20", "0", "0", "0", "8"]);
    }
}
