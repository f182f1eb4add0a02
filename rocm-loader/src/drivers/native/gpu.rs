//! The AMD GPUs of this machine, as Linux reports them. No library is opened to find them.
use std::path::Path;

use rocm_driver_api::Library;

use super::library;

/// Device file of the kernel's compute driver (KFD).
const KFD_DEVICE: &str = "/dev/kfd";
/// Device file of Windows' paravirtual GPU, which ROCm uses inside WSL.
const WSL_DEVICE: &str = "/dev/dxg";
/// Folder in which the compute driver has one subfolder for each CPU and GPU.
const KFD_TOPOLOGY: &str = "/sys/class/kfd/kfd/topology/nodes";

/// Returns the architectures of the AMD GPUs that the kernel reports, or the reason why there is none. The list is empty
/// inside WSL, where the kernel does not report architectures.
pub(super) fn find() -> Result<Vec<String>, String> {
    if !Path::new(KFD_DEVICE).exists() {
        return if Path::new(WSL_DEVICE).exists() && library::is_installed(Library::Hip) {
            Ok(Vec::new())
        } else {
            Err(format!(
                "there is no {KFD_DEVICE} (the amdgpu kernel driver is not loaded, or the container lacks the device: \
                 start it with --device {KFD_DEVICE} --device /dev/dri)"
            ))
        };
    }
    let archs = archs_in(Path::new(KFD_TOPOLOGY));
    if archs.is_empty() { Err(format!("{KFD_TOPOLOGY} lists no GPU")) } else { Ok(archs) }
}

/// Returns the architectures in a topology folder, in the order of their nodes.
fn archs_in(topology: &Path) -> Vec<String> {
    let Ok(folder) = std::fs::read_dir(topology) else { return Vec::new() };
    let mut nodes: Vec<(u32, String)> = folder
        .flatten()
        .filter_map(|node| {
            let number = node.file_name().to_str()?.parse().ok()?;
            let properties = std::fs::read_to_string(node.path().join("properties")).ok()?;
            Some((number, arch_of(&properties)?))
        })
        .collect();
    nodes.sort();
    nodes.into_iter().map(|(_, arch)| arch).collect()
}

/// Returns the architecture in a node's properties: `gfx_target_version 110000` is gfx1100. The number is
/// major * 10000 + minor * 100 + stepping; the name has the last two in hexadecimal. CPUs have 0.
fn arch_of(properties: &str) -> Option<String> {
    let line = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
    let version: u32 = line.trim().parse().ok().filter(|version| *version != 0)?;
    Some(format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100))
}

/// Returns the likely reasons why an installed ROCm sees no GPU: the kernel's report, and variables that hide GPUs.
pub(super) fn reasons_for_no_device() -> String {
    let mut reasons = Vec::new();
    match find() {
        Err(reason) => reasons.push(reason),
        Ok(archs) => reasons.push(format!(
            "the kernel reports {}; check that this user may open {KFD_DEVICE} (groups render and video)",
            if archs.is_empty() { "WSL's GPU".to_owned() } else { archs.join(", ") }
        )),
    }
    for name in ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"]
    {
        if let Ok(value) = std::env::var(name) {
            reasons.push(format!("{name}={value:?} may hide GPUs"));
        }
    }
    if let Ok(value) = std::env::var("HSA_OVERRIDE_GFX_VERSION") {
        reasons.push(if value.is_empty() {
            "HSA_OVERRIDE_GFX_VERSION is set but empty, which makes ROCm see no GPU: unset it".to_owned()
        } else {
            format!("HSA_OVERRIDE_GFX_VERSION={value:?} may name a GPU that this ROCm does not know")
        });
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_versions_become_architectures() {
        let arch =
            |version: &str| arch_of(&format!("cpu_cores_count 0\ngfx_target_version {version}\nx 1\n"));
        assert_eq!(arch("110000").as_deref(), Some("gfx1100"));
        assert_eq!(arch("90010").as_deref(), Some("gfx90a"));
        assert_eq!(arch("90402").as_deref(), Some("gfx942"));
        assert_eq!(arch("120001").as_deref(), Some("gfx1201"));
        assert_eq!(arch("0"), None);
        assert_eq!(arch("text"), None);
        assert_eq!(arch_of("cpu_cores_count 8\n"), None);
    }

    #[test]
    fn gpus_are_listed_by_node_number_without_cpus() -> std::io::Result<()> {
        let topology = tempfile::tempdir()?;
        for (node, version) in [("0", "0"), ("10", "90010"), ("2", "110000")] {
            let folder = topology.path().join(node);
            std::fs::create_dir(&folder)?;
            std::fs::write(
                folder.join("properties"),
                format!("simd_count 4\ngfx_target_version {version}\n"),
            )?;
        }
        assert_eq!(archs_in(topology.path()), ["gfx1100", "gfx90a"]);
        assert!(archs_in(&topology.path().join("nowhere")).is_empty());
        Ok(())
    }
}
