//! Known problems of a machine: kernel, firmware, ROCm's version and variables.

/// A known problem of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownProblem {
    /// Number N in `rocm:N` of the GPU that is affected; `None` if several are.
    pub ordinal: Option<usize>,
    /// Problem, value and remedy.
    pub text: String,
    /// Public report of the problem.
    pub source: &'static str,
}

/// Sources of information about the machine, which tests replace.
pub(super) struct Facts<'a> {
    /// Reads a file of procfs or sysfs.
    pub(super) file: &'a dyn Fn(&str) -> Option<String>,
    /// Reads an environment variable.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Version of the HIP runtime: major * 10_000_000 + minor * 100_000 + patch.
    pub(super) hip: Option<i32>,
    /// Returns whether the first GPU can access the second one's memory; `None` if that is unknown.
    pub(super) can_access: &'a dyn Fn(usize, usize) -> Option<bool>,
}

/// Properties of one GPU that the checks need.
pub(super) struct Gpu<'a> {
    pub(super) ordinal: usize,
    /// Architecture as reported by HIP, without features.
    pub(super) arch: &'a str,
    pub(super) integrated: bool,
    /// PCI address, such as `0000:03:00.0`.
    pub(super) address: &'a str,
}

/// First Linux that saves waves of gfx1151 correctly.
const FIXED_LINUX: (u32, u32) = (6, 18);
/// Maximum number of nodes of the kernel driver's topology that are read.
const MAX_NODES: usize = 64;
/// First version of HIP that reclaims scratch memory at each launch.
const RECLAIMING_HIP: i32 = 71_300_000;

impl Facts<'_> {
    /// Returns the known problems of the machine with these GPUs.
    pub(super) fn problems(&self, gpus: &[Gpu]) -> Vec<KnownProblem> {
        let mut problems = Vec::new();
        for gpu in gpus {
            let found = [
                self.overridden(gpu),
                self.broken_firmware(gpu),
                self.old_kernel(gpu),
                self.slow_scratch(gpu),
            ];
            let found = found.into_iter().flatten();
            let of_gpu = |(text, source)| KnownProblem { ordinal: Some(gpu.ordinal), text, source };
            problems.extend(found.map(of_gpu));
        }
        problems.extend(self.translated(gpus));
        problems.extend(self.without_peer_access(gpus));
        problems
    }

    fn number(&self, path: &str) -> Option<u32> {
        let text = (self.file)(path)?;
        let text = text.trim();
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
    }

    /// Returns the architecture that the kernel driver reports for the GPU.
    fn hardware_arch(&self, gpu: &Gpu) -> Option<String> {
        let mut parts = gpu.address.split([':', '.']);
        let mut hex = || u64::from_str_radix(parts.next()?, 16).ok();
        let (domain, bus, device, function) = (hex()?, hex()?, hex()?, hex()?);
        // The domain of a GPU's node is that of its PCI address, the location its bus, device and function.
        let location = (bus << 8) | (device << 3) | function;
        (0..MAX_NODES).find_map(|node| {
            let text = (self.file)(&format!("/sys/class/kfd/kfd/topology/nodes/{node}/properties"))?;
            let value = |name: &str| -> Option<u64> {
                let mut lines = text.lines().filter_map(|line| line.split_once(' '));
                lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
            };
            if (value("domain"), value("location_id")) != (Some(domain), Some(location)) {
                return None;
            }
            let version = value("gfx_target_version")?;
            Some(format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100))
        })
    }

    fn overridden(&self, gpu: &Gpu) -> Option<(String, &'static str)> {
        let value = (self.variable)("HSA_OVERRIDE_GFX_VERSION")?;
        let arch = self.hardware_arch(gpu).filter(|arch| arch != gpu.arch)?;
        let text = format!(
            "HSA_OVERRIDE_GFX_VERSION={value} makes ROCm run kernels for {} on {arch}, which may compute wrong results or \
             hang: unset it, and build with CANDLE_ROCM_ARCHS={arch} if this binary has no kernels for it",
            gpu.arch
        );
        Some((text, "https://github.com/ROCm/legacy-rocm-build/issues/5238"))
    }

    fn broken_firmware(&self, gpu: &Gpu) -> Option<(String, &'static str)> {
        let path = format!("/sys/bus/pci/devices/{}/fw_version/mes_fw_version", gpu.address);
        let is_broken = matches!(gpu.arch, "gfx1150" | "gfx1151") && self.number(&path) == Some(0x83);
        let text = format!(
            "MES firmware 0x83 makes {} hang: install a linux-firmware with another version",
            gpu.arch
        );
        is_broken.then_some((text, "https://github.com/ROCm/legacy-rocm-build/issues/5724"))
    }

    fn old_kernel(&self, gpu: &Gpu) -> Option<(String, &'static str)> {
        let release = (self.file)("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
        // Drivers that are built separately from the kernel have a separate version.
        let is_separate = (self.file)("/sys/module/amdgpu/version").is_some();
        let saves_waves = self.number("/sys/module/amdgpu/parameters/cwsr_enable") != Some(0);
        let is_old = gpu.arch == "gfx1151" && (major, minor) < FIXED_LINUX && !is_separate && saves_waves;
        let text = format!(
            "Linux {} may make {} hang: install Linux 6.18 or later, or boot with amdgpu.cwsr_enable=0",
            release.trim(),
            gpu.arch
        );
        is_old.then_some((text, "https://github.com/ROCm/legacy-rocm-build/issues/5991"))
    }

    fn slow_scratch(&self, gpu: &Gpu) -> Option<(String, &'static str)> {
        let is_slow = gpu.arch == "gfx90a"
            && self.hip.is_some_and(|version| version >= RECLAIMING_HIP)
            && (self.variable)("HSA_NO_SCRATCH_RECLAIM").is_none_or(|value| value.trim() != "1");
        let text =
            "launches of kernels with scratch memory, such as RCCL's, are slow: set HSA_NO_SCRATCH_RECLAIM=1";
        is_slow.then_some((text.to_string(), "https://github.com/ROCm/rocm-systems/pull/8657"))
    }

    fn translated(&self, gpus: &[Gpu]) -> Option<KnownProblem> {
        let is_translated = |gpu: &&Gpu| {
            let path = format!("/sys/bus/pci/devices/{}/iommu_group/type", gpu.address);
            !gpu.integrated && (self.file)(&path).is_some_and(|kind| kind.starts_with("DMA"))
        };
        let count = gpus.iter().filter(is_translated).count();
        let text = format!("the IOMMU translates addresses of {count} GPUs, so copies between them may hang: boot with iommu=pt");
        let source = "https://github.com/ROCm/rccl/issues/1129";
        (count > 1).then_some(KnownProblem { ordinal: None, text, source })
    }

    /// Returns the first pair of cards with access in one direction only, or else the first pair without access.
    fn without_peer_access(&self, gpus: &[Gpu]) -> Option<KnownProblem> {
        let cards: Vec<usize> = gpus.iter().filter(|gpu| !gpu.integrated).map(|gpu| gpu.ordinal).collect();
        let pairs = cards.iter().enumerate().flat_map(|(i, a)| cards[i + 1..].iter().map(move |b| (*a, *b)));
        let access = |(a, b)| Some((a, b, (self.can_access)(a, b)?, (self.can_access)(b, a)?));
        let pairs: Vec<_> = pairs.filter_map(access).collect();
        let one_way = pairs.iter().find(|(_, _, forth, back)| forth != back).map(|&(a, b, forth, _)| {
            let (from, to) = if forth { (a, b) } else { (b, a) };
            let text = format!(
                "rocm:{from} can access the memory of rocm:{to}, but not the other way round, so RCCL may fail to connect \
                 them: set NCCL_P2P_DISABLE=1, or enable Above 4G Decoding and Resizable BAR in the firmware"
            );
            (text, "https://github.com/ROCm/rocm-systems/issues/10586")
        });
        let neither = || {
            let (a, b, ..) = pairs.iter().find(|(_, _, forth, back)| !forth && !back)?;
            let text = format!(
                "rocm:{a} and rocm:{b} have no peer access, so data between them goes through the host's memory: enable Above \
                 4G Decoding and Resizable BAR in the firmware, and use a Linux with CONFIG_HSA_AMD_P2P"
            );
            Some((text, "https://github.com/ROCm/legacy-rocm-build/issues/579"))
        };
        one_way.or_else(neither).map(|(text, source)| KnownProblem { ordinal: None, text, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";
    const FOLDER: &str = "/sys/bus/pci/devices/0000:c5:00.0";

    /// Returns the problems of a machine with these files and variables, and HIP 7.13.
    fn problems(entries: &[(&str, &str)], gpus: &[Gpu]) -> Vec<KnownProblem> {
        let lookup =
            |name: &str| entries.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let hip = Some(71_326_154);
        Facts { file: &lookup, variable: &lookup, hip, can_access: &|_, _| Some(true) }.problems(gpus)
    }

    #[track_caller]
    fn assert_only(problems: &[KnownProblem], parts: &[&str]) {
        let [problem] = problems else { panic!("{problems:?}") };
        for part in parts {
            assert!(problem.text.contains(part), "{part} is not in {problem:?}");
        }
        assert!(problem.source.starts_with("https://github.com/"));
    }

    fn gpu(arch: &str) -> Gpu<'_> {
        Gpu { ordinal: 0, arch, integrated: true, address: "0000:c5:00.0" }
    }

    #[test]
    fn firmware_and_kernels_that_hang_are_named() {
        let firmware = format!("{FOLDER}/fw_version/mes_fw_version");
        for arch in ["gfx1150", "gfx1151"] {
            assert_only(&problems(&[(&firmware, "0x00000083\n")], &[gpu(arch)]), &["0x83", arch]);
        }
        assert_eq!(problems(&[(&firmware, "0x00000080")], &[gpu("gfx1151")]), []);
        assert_eq!(problems(&[(&firmware, "0x00000083")], &[gpu("gfx1201")]), []);
        let release = |text| ("/proc/sys/kernel/osrelease", text);
        let old = problems(&[release("6.17.0-23-generic\n")], &[gpu("gfx1151")]);
        assert_only(&old, &["Linux 6.17.0-23-generic", "amdgpu.cwsr_enable=0"]);
        let parameter = ("/sys/module/amdgpu/parameters/cwsr_enable", "0\n");
        let separate = ("/sys/module/amdgpu/version", "6.16.13");
        for handled in [parameter, separate] {
            assert_eq!(problems(&[release("6.17.0"), handled], &[gpu("gfx1151")]), []);
        }
        for (arch, text) in
            [("gfx1151", "6.18.3"), ("gfx1151", "7.0.0"), ("gfx1100", "6.8.0"), ("gfx1151", "x")]
        {
            assert_eq!(problems(&[release(text)], &[gpu(arch)]), [], "{arch} {text}");
        }
    }

    #[test]
    fn an_override_is_named_with_the_hardware() {
        let node = "/sys/class/kfd/kfd/topology/nodes/1/properties";
        let properties = "cpu_cores_count 0\ngfx_target_version 110501\nlocation_id 50432\ndomain 0\n";
        let set = [(OVERRIDE, "11.0.0"), (node, properties)];
        assert_only(
            &problems(&set, &[gpu("gfx1100")]),
            &["11.0.0", "gfx1100 on gfx1151", "CANDLE_ROCM_ARCHS=gfx1151"],
        );
        assert_eq!(problems(&set, &[gpu("gfx1151")]), []);
        assert_eq!(problems(&set[1..], &[gpu("gfx1100")]), []);
    }

    #[test]
    fn scratch_memory_is_named_on_gfx90a_only() {
        assert_only(&problems(&[], &[gpu("gfx90a")]), &["HSA_NO_SCRATCH_RECLAIM=1"]);
        assert_eq!(problems(&[("HSA_NO_SCRATCH_RECLAIM", "1")], &[gpu("gfx90a")]), []);
        let nothing = |_: &str| None;
        let hip = Some(70_226_015);
        let older = Facts { file: &nothing, variable: &nothing, hip, can_access: &|_, _| None };
        assert_eq!(older.problems(&[gpu("gfx90a")]), []);
    }

    #[test]
    fn translated_addresses_matter_to_several_cards() {
        let card = |address| Gpu { ordinal: 0, arch: "gfx1100", integrated: false, address };
        let two = [card("0000:03:00.0"), card("0000:c5:00.0")];
        let kind = |kind| {
            [
                ("/sys/bus/pci/devices/0000:03:00.0/iommu_group/type", kind),
                ("/sys/bus/pci/devices/0000:c5:00.0/iommu_group/type", kind),
            ]
        };
        assert_only(&problems(&kind("DMA-FQ\n"), &two), &["2 GPUs", "iommu=pt"]);
        assert_eq!(problems(&kind("identity\n"), &two), []);
        assert_eq!(problems(&kind("DMA\n"), &two[..1]), []);
        assert_eq!(problems(&[], &two), []);
    }

    #[test]
    fn cards_without_peer_access_are_named() {
        let card =
            |ordinal, integrated| Gpu { ordinal, arch: "gfx1100", integrated, address: "0000:03:00.0" };
        let problems = |gpus: &[Gpu], pairs: &[(usize, usize)]| {
            let can_access = |from, to| Some(pairs.contains(&(from, to)));
            Facts { file: &|_| None, variable: &|_| None, hip: None, can_access: &can_access }.problems(gpus)
        };
        let three = [card(0, false), card(1, false), card(2, false)];
        assert_eq!(problems(&three, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]), []);
        let neither = problems(&three, &[(0, 1), (1, 0), (0, 2), (2, 0)]);
        assert_only(
            &neither,
            &["rocm:1 and rocm:2 have no peer access", "Resizable BAR", "CONFIG_HSA_AMD_P2P"],
        );
        // Access in one direction makes RCCL fail, so it matters more than none.
        let one_way = problems(&three, &[(0, 1), (1, 0), (2, 1)]);
        assert_only(&one_way, &["rocm:2 can access the memory of rocm:1, but not", "NCCL_P2P_DISABLE=1"]);
        assert_eq!(problems(&[card(0, false), card(1, true)], &[]), []);
        let unknown = Facts { file: &|_| None, variable: &|_| None, hip: None, can_access: &|_, _| None };
        assert_eq!(unknown.problems(&three), []);
    }
}
