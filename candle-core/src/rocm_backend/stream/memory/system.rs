//! Memory of a GPU as Linux reports it.

/// Size of a memory pool in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Bytes that nobody uses.
    pub free: usize,
    /// All bytes.
    pub total: usize,
}

/// The memory that a GPU can use, by pool. A pool is `None` if Linux does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPools {
    /// The card's memory; on an integrated GPU the part of RAM that the firmware reserves for it.
    pub vram: Option<PoolSize>,
    /// RAM that the kernel driver may map for the GPU.
    pub gtt: Option<PoolSize>,
    /// RAM that is available to programs.
    pub ram: Option<PoolSize>,
}

/// Identifies a GPU's memory.
#[derive(Clone, Debug)]
pub(crate) struct SystemMemory {
    /// PCI address, such as `0000:03:00.0`; `None` if HIP does not report it.
    pub(crate) address: Option<String>,
    /// True if the GPU uses the processor's memory.
    pub(crate) integrated: bool,
}

impl SystemMemory {
    /// Returns the free and total bytes, given those that HIP reports and the number of bytes that this process holds.
    pub(super) fn info(&self, hip: (usize, usize), held: usize) -> (usize, usize) {
        MemoryPools::of(self.address.as_deref()).info(self.integrated, hip, held)
    }
}

/// Reads a file of procfs or sysfs of the driver's machine.
pub(crate) fn system_file(path: &str) -> Option<String> {
    std::fs::read_to_string(rocm_loader::driver().ok()?.system_file(path)?).ok()
}

impl MemoryPools {
    /// Reads the pools of the GPU at a PCI address.
    pub(crate) fn of(address: Option<&str>) -> Self {
        Self::read(address, system_file)
    }

    fn read(address: Option<&str>, file: impl Fn(&str) -> Option<String>) -> Self {
        let pool = |name: &str| {
            let bytes = |kind| -> Option<usize> {
                let path = format!("/sys/bus/pci/devices/{}/mem_info_{name}_{kind}", address?);
                file(&path)?.trim().parse().ok()
            };
            let total = bytes("total")?;
            Some(PoolSize { free: total.saturating_sub(bytes("used")?), total })
        };
        let ram = || {
            let text = file("/proc/meminfo")?;
            let bytes = |name| -> Option<usize> {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
            };
            Some(PoolSize { free: bytes("MemAvailable:")?, total: bytes("MemTotal:")? })
        };
        Self { vram: pool("vram"), gtt: pool("gtt"), ram: ram() }
    }

    /// Returns the pool from which the kernel driver allocates: of an integrated GPU the GTT if that is larger.
    fn used(&self, integrated: bool) -> Option<PoolSize> {
        match (self.vram, self.gtt) {
            (vram, Some(gtt)) if integrated && vram.is_none_or(|vram| gtt.total > vram.total) => {
                Some(PoolSize { free: gtt.free.min(self.ram?.free), total: gtt.total })
            }
            (vram, _) => vram,
        }
    }

    fn info(&self, integrated: bool, (free, total): (usize, usize), held: usize) -> (usize, usize) {
        let used = self.used(integrated);
        let total = match (used, self.vram) {
            // HIP counts more than the VRAM, but may ignore a larger limit of the GTT.
            (Some(used), Some(vram)) if total > vram.total => total.max(used.total),
            _ => total,
        };
        let of_system = used.map_or(usize::MAX, |used| used.free);
        (free.min(of_system).min(total.saturating_sub(held)), total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    fn pools(vram: [usize; 2], gtt: [usize; 2], ram_free: usize) -> MemoryPools {
        let files = [
            ("/sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_total", vram[1].to_string()),
            ("/sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_used", format!("{}\n", vram[1] - vram[0])),
            ("/sys/bus/pci/devices/0000:c5:00.0/mem_info_gtt_total", gtt[1].to_string()),
            ("/sys/bus/pci/devices/0000:c5:00.0/mem_info_gtt_used", (gtt[1] - gtt[0]).to_string()),
            ("/proc/meminfo", format!("MemTotal: 67108864 kB\nMemAvailable:  {} kB\n", ram_free >> 10)),
        ];
        let file = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.clone());
        MemoryPools::read(Some("0000:c5:00.0"), file)
    }

    #[test]
    fn pools_are_read_separately() {
        let size = |free, total| Some(PoolSize { free: free * GIB, total: total * GIB });
        let expected = MemoryPools { vram: size(10, 16), gtt: size(30, 31), ram: size(40, 64) };
        assert_eq!(pools([10 * GIB, 16 * GIB], [30 * GIB, 31 * GIB], 40 * GIB), expected);
        assert_eq!(MemoryPools::read(None, |_| None), MemoryPools::default());
    }

    #[test]
    fn free_memory_is_the_least_of_three_figures() {
        let gib = |(free, total): (usize, usize)| (free / GIB, total / GIB);
        let card = pools([10 * GIB, 16 * GIB], [30 * GIB, 31 * GIB], 40 * GIB);
        let of_card = |free, held| gib(card.info(false, (free * GIB, 16 * GIB), held * GIB));
        assert_eq!([of_card(15, 1), of_card(9, 1), of_card(15, 12)], [(10, 16), (9, 16), (4, 16)]);
        // HIP reports more free than total memory, with a small reserved part and a large GTT.
        let small = pools([GIB / 4, GIB / 2], [128 * GIB, 128 * GIB], 110 * GIB);
        let of_small = |free, held| gib(small.info(true, (free * GIB, 62 * GIB), held * GIB));
        assert_eq!(
            [of_small(120, 0), of_small(100, 20), of_small(120, 30)],
            [(110, 128), (100, 128), (98, 128)]
        );
        // HIP only counts the reserved part.
        assert_eq!(
            gib(pools([15 * GIB, 15 * GIB], [96 * GIB; 2], 90 * GIB).info(true, (15 * GIB, 15 * GIB), 0)),
            (15, 15)
        );
        let large = pools([90 * GIB, 96 * GIB], [15 * GIB, 16 * GIB], 14 * GIB);
        assert_eq!(gib(large.info(true, (95 * GIB, 96 * GIB), 0)), (90, 96));
        assert_eq!(gib(MemoryPools::default().info(true, (7 * GIB, 8 * GIB), GIB)), (7, 8));
    }
}
