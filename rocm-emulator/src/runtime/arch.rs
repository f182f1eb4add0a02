//! The chips that the software GPU can emulate, one row per architecture.
use crate::isa::Family;

/// Properties of a chip that host code can query. The sizes are those of a real chip of the architecture, so that code
/// picks the same grids and tiles; the speeds are nominal.
#[derive(Debug)]
pub struct ArchSpec {
    /// hipDeviceProp_t::gcnArchName: LLVM's processor name with the feature suffixes of the chip.
    pub gcn_arch_name: &'static str,
    /// The generic target that includes this chip; empty if there is none.
    pub generic: &'static str,
    pub family: Family,
    /// hipDeviceProp_t::major and minor.
    pub major: u32,
    pub minor: u32,
    pub wave_size: u32,
    /// Number of multiprocessors as counted by HIP (workgroup processors on RDNA).
    pub multiprocessors: u32,
    /// Number of SIMDs per multiprocessor in the occupancy calculation.
    pub simds: u32,
    pub waves_per_simd: u32,
    /// Vector registers per lane in a SIMD's register file, and their allocation granularity.
    pub vgprs_per_simd: u32,
    pub vgpr_granule: u32,
    /// Maximum LDS of a workgroup, and LDS of a multiprocessor, in bytes.
    pub lds_per_workgroup: u32,
    pub lds_per_multiprocessor: u32,
    pub l2_cache_bytes: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    /// True if the GPU is integrated into a processor and uses its memory.
    pub integrated: bool,
}

impl ArchSpec {
    /// Returns LLVM's processor name.
    pub fn name(&self) -> &'static str {
        self.gcn_arch_name.split(':').next().unwrap_or_default()
    }

    /// Sets the number of multiprocessors, the L2 cache in MiB, the clocks of the chip and its memory in MHz, and
    /// the width of the memory bus in bits.
    const fn sized(self, multiprocessors: u32, l2: u32, clock: u32, memory: u32, bus: u32) -> Self {
        Self {
            multiprocessors,
            l2_cache_bytes: l2 << 20,
            clock_khz: 1000 * clock,
            memory_clock_khz: 1000 * memory,
            memory_bus_bits: bus,
            ..self
        }
    }
}

/// gfx90a, from which the rows of the other gfx9 chips are derived.
const GFX90A: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx90a:sramecc+:xnack-",
    generic: "",
    family: Family::Cdna2,
    major: 9,
    minor: 0,
    wave_size: 64,
    multiprocessors: 104,
    simds: 4,
    waves_per_simd: 8,
    vgprs_per_simd: 512,
    vgpr_granule: 8,
    lds_per_workgroup: 64 << 10,
    lds_per_multiprocessor: 64 << 10,
    l2_cache_bytes: 8 << 20,
    clock_khz: 1_700_000,
    memory_clock_khz: 1_600_000,
    memory_bus_bits: 4096,
    integrated: false,
};

const GFX908: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx908:sramecc+:xnack-",
    family: Family::Cdna1,
    waves_per_simd: 10,
    vgprs_per_simd: 256,
    vgpr_granule: 4,
    ..GFX90A.sized(120, 8, 1502, 1200, 4096)
};

const GFX942: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx942:sramecc+:xnack-",
    generic: "gfx9-4-generic",
    family: Family::Cdna3,
    minor: 4,
    ..GFX90A.sized(304, 4, 2100, 1300, 8192)
};

/// gfx1100, from which the rows of the RDNA chips are derived.
const GFX1100: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx1100",
    generic: "gfx11-generic",
    family: Family::Rdna3,
    major: 11,
    minor: 0,
    wave_size: 32,
    multiprocessors: 48,
    simds: 4,
    waves_per_simd: 16,
    vgprs_per_simd: 1536,
    vgpr_granule: 24,
    lds_per_workgroup: 64 << 10,
    lds_per_multiprocessor: 128 << 10,
    l2_cache_bytes: 6 << 20,
    clock_khz: 2_500_000,
    memory_clock_khz: 1_250_000,
    memory_bus_bits: 384,
    integrated: false,
};

const GFX1102: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx1102",
    vgprs_per_simd: 1024,
    vgpr_granule: 16,
    ..GFX1100.sized(16, 2, 2600, 1125, 128)
};

const GFX1200: ArchSpec = ArchSpec {
    gcn_arch_name: "gfx1200",
    generic: "gfx12-generic",
    family: Family::Rdna4,
    major: 12,
    ..GFX1100.sized(16, 4, 3130, 1259, 128)
};

/// All supported chips.
pub const ARCHS: &[ArchSpec] = &[
    ArchSpec {
        gcn_arch_name: "gfx906:sramecc+:xnack-",
        generic: "gfx9-generic",
        family: Family::Gcn5,
        ..GFX908.sized(60, 4, 1725, 1000, 4096)
    },
    GFX908,
    GFX90A,
    GFX942,
    ArchSpec {
        gcn_arch_name: "gfx950:sramecc+:xnack-",
        family: Family::Cdna4,
        minor: 5,
        lds_per_workgroup: 160 << 10,
        lds_per_multiprocessor: 160 << 10,
        ..GFX942.sized(256, 4, 2400, 1950, 8192)
    },
    ArchSpec {
        gcn_arch_name: "gfx1030",
        generic: "gfx10-3-generic",
        family: Family::Rdna2,
        major: 10,
        minor: 3,
        ..GFX1102.sized(40, 4, 2250, 1000, 256)
    },
    GFX1100,
    GFX1102,
    ArchSpec { gcn_arch_name: "gfx1103", integrated: true, ..GFX1102.sized(6, 2, 2700, 2800, 128) },
    ArchSpec {
        gcn_arch_name: "gfx1151",
        family: Family::Rdna35,
        minor: 5,
        integrated: true,
        ..GFX1100.sized(20, 2, 2900, 4000, 256)
    },
    GFX1200,
    ArchSpec { gcn_arch_name: "gfx1201", ..GFX1200.sized(32, 8, 2970, 1259, 256) },
];

/// Returns the row of an architecture. Feature suffixes (`:xnack-`) are ignored.
pub fn find(name: &str) -> Option<&'static ArchSpec> {
    let processor = name.split(':').next()?;
    ARCHS.iter().find(|arch| arch.name() == processor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_with_and_without_features() {
        assert_eq!(find("gfx1100").map(|a| a.name()), Some("gfx1100"));
        assert_eq!(find("gfx1102:xnack-").map(|a| a.name()), Some("gfx1102"));
        assert!(find("gfx90").is_none());
        assert!(find("").is_none());
    }

    #[test]
    fn rows_are_consistent() {
        for arch in ARCHS {
            assert!(arch.name().starts_with(&format!("gfx{}{:x}", arch.major, arch.minor)));
            assert_eq!(arch.vgprs_per_simd % arch.vgpr_granule, 0);
            assert!(arch.lds_per_workgroup <= arch.lds_per_multiprocessor);
        }
    }
}
