//! Properties of a GPU, read without opening it.
use crate::rocm_backend::stream::check;
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::ffi::CStr;
use std::path::Path;

pub(super) struct Properties {
    /// Marketing name.
    pub(super) name: String,
    /// True if the GPU is built into the processor and uses its memory.
    pub(super) integrated: bool,
    /// Total memory in bytes.
    pub(super) total_memory: usize,
    /// HIP's number of multiprocessors: compute units or work-group processors, depending on the architecture.
    pub(super) multiprocessors: usize,
}

/// Returns the properties of GPU `ordinal`.
///
/// # Errors
/// If HIP fails.
pub(super) fn properties(ordinal: usize) -> Result<Properties> {
    let properties = hip::get_device_properties(ordinal as i32);
    let label = || format!("rocm:{ordinal}");
    let properties = check(properties, label, || format!("hipGetDeviceProperties({ordinal})"))?;
    let (integrated, total_memory) = (properties.integrated != 0, properties.total_global_mem);
    let multiprocessors = properties.multi_processor_count.max(1) as usize;
    Ok(Properties { name: properties.name, integrated, total_memory, multiprocessors })
}

/// Returns true if sysfs reports a display connected to the GPU at a PCI address; false if that is unknown.
pub(super) fn drives_display(address: &str) -> bool {
    has_connected_display(&Path::new("/sys/bus/pci/devices").join(address).join("drm"))
}

/// Returns the PCI address of GPU `ordinal`, such as `0000:03:00.0`.
pub(super) fn pci_address(ordinal: usize) -> Option<String> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer has the given length, and the call terminates the text within it.
    let code = unsafe {
        bindings::hipDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, ordinal as i32)
    };
    if code != bindings::hipError_t_hipSuccess {
        // Not every driver implements this call.
        clear_last_error();
        return None;
    }
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?.to_ascii_lowercase())
}

/// Returns whether GPU `from` can access the memory of GPU `to`; `None` if HIP does not report it.
pub(super) fn can_access_peer(from: usize, to: usize) -> Option<bool> {
    let mut can_access = 0;
    // SAFETY: HIP writes one integer.
    let code = unsafe { bindings::hipDeviceCanAccessPeer(&mut can_access, from as i32, to as i32) };
    if code != bindings::hipError_t_hipSuccess {
        clear_last_error();
        return None;
    }
    Some(can_access != 0)
}

/// Clears the last error, so that an unrelated call does not return it.
fn clear_last_error() {
    let _ = hip::get_last_error();
    let _ = rocm_loader::last_error();
}

/// Searches the folder `drm` for a connector, such as `card0/card0-DP-1/status`, that is connected.
fn has_connected_display(drm: &Path) -> bool {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries(drm).flat_map(|card| entries(&card.path()).collect::<Vec<_>>()).any(|connector| {
        std::fs::read_to_string(connector.path().join("status"))
            .is_ok_and(|status| status.trim() == "connected")
    })
}

#[cfg(test)]
mod tests {
    use super::has_connected_display;

    #[test]
    fn a_connected_connector_is_a_display() {
        let root = std::env::temp_dir().join(format!("candle-rocm-drm-{}", std::process::id()));
        let connector = root.join("card1/card1-DP-1");
        std::fs::create_dir_all(&connector).unwrap();
        assert!(!has_connected_display(&root));
        std::fs::write(connector.join("status"), "disconnected\n").unwrap();
        assert!(!has_connected_display(&root));
        std::fs::write(connector.join("status"), "connected\n").unwrap();
        let found = has_connected_display(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(found && !has_connected_display(&root));
    }
}
