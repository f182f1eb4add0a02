//! Properties of a GPU, read without opening it.
use crate::rocm_backend::stream::check;
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::ffi::CStr;
use std::path::Path;

/// Properties of one GPU.
pub(super) struct Properties {
    /// The name under which it is sold.
    pub(super) name: String,
    /// Whether it is built into the processor and uses its memory.
    pub(super) integrated: bool,
    /// Bytes.
    pub(super) total_memory: usize,
    /// Number of multiprocessors in HIP's terms: compute units, or pairs of them.
    pub(super) multiprocessors: usize,
}

/// The properties of GPU `ordinal`.
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

/// Whether a display is attached to GPU `ordinal`, as far as the kernel's sysfs says; false where it cannot be asked.
pub(super) fn draws_a_display(ordinal: usize) -> bool {
    let Some(address) = pci_address(ordinal) else { return false };
    has_connected_display(&Path::new("/sys/bus/pci/devices").join(address).join("drm"))
}

/// Like `0000:03:00.0`.
fn pci_address(ordinal: usize) -> Option<String> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer has the length that is given, and the call ends the text within it.
    let code = unsafe {
        bindings::hipDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, ordinal as i32)
    };
    if code != bindings::hipError_t_hipSuccess {
        // HIP keeps the last error for whoever asks next; not every driver knows the bus.
        let _ = hip::get_last_error();
        let _ = rocm_loader::last_error();
        return None;
    }
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?.to_ascii_lowercase())
}

/// `drm` holds `card0/card0-DP-1/status` and the like.
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
