//! What the loader adds to the calls, on two software GPUs.
#![cfg(feature = "emulator")]

use std::error::Error;
use std::ptr::null_mut;

use rocm_loader::{Choice, bound_device, hip, miopen, parts};

fn select() -> Result<(), rocm_loader::LoadError> {
    rocm_loader::select(Choice::Emulator(vec!["gfx1100".into(), "gfx90a".into()]))
}

#[test]
fn the_bound_device_follows_what_the_thread_calls() -> Result<(), Box<dyn Error>> {
    select()?;
    assert_eq!(bound_device(), None);
    // SAFETY: these functions take integers or write one integer, whose place outlives the call.
    unsafe {
        assert_eq!(hip::hipSetDevice(1), 0);
        assert_eq!(bound_device(), Some(1));
        assert_eq!(hip::hipGetDeviceCount(&mut 0), 0);
        assert_eq!(bound_device(), Some(1), "asking changes nothing");
        assert_ne!(hip::hipSetDevice(2), 0);
        assert_eq!(bound_device(), None, "it failed");
        assert_eq!(hip::hipSetDevice(0), 0);
        assert_eq!(std::thread::spawn(bound_device).join().ok(), Some(None));
        assert_eq!(bound_device(), Some(0));
        hip::hipCtxSetCurrent(null_mut());
        assert_eq!(bound_device(), None);
    }
    Ok(())
}

#[test]
fn a_part_that_is_taken_divides_its_allocation() -> Result<(), Box<dyn Error>> {
    select()?;
    assert!(parts::are_watched());
    let null_stream = null_mut();
    let mut segment = null_mut();
    // SAFETY: the segment is 64 KiB, and every fill begins and ends in it.
    unsafe {
        assert_eq!(hip::hipMalloc(&mut segment, 1 << 16), 0);
        let fills = |offset: usize| {
            let code = hip::hipMemset(segment.byte_add(offset), 0, 4096);
            (code == 0) && hip::hipDeviceSynchronize() == 0
        };
        assert!(fills(8192), "the whole segment is one allocation");
        parts::taken(null_stream, segment.addr(), 4096);
        assert!(fills(0));
        parts::given(null_stream, segment.addr());
        assert!(!fills(0), "it was given back");
    }
    Ok(())
}

#[test]
fn the_software_gpu_needs_no_tensile_files() -> Result<(), Box<dyn Error>> {
    select()?;
    assert_eq!(rocm_loader::tensile::files_for("gfx1100")?, None);
    Ok(())
}

#[test]
fn the_software_gpu_has_no_find_mode() -> Result<(), Box<dyn Error>> {
    select()?;
    let (handle, tensor, convolution) = (null_mut(), null_mut(), null_mut());
    // SAFETY: nobody reads what is null, and the place is for one number.
    let status = unsafe {
        miopen::miopenConvolutionForwardGetWorkSpaceSize(handle, tensor, tensor, convolution, tensor, &mut 0)
    };
    let text = rocm_loader::last_error().unwrap_or_default();
    assert_eq!(status, 6, "not implemented");
    assert!(text.contains("the software GPU has no miopenConvolutionForwardGetWorkSpaceSize"), "{text}");
    Ok(())
}

#[test]
fn an_object_for_an_nvidia_gpu_is_refused() -> Result<(), Box<dyn Error>> {
    select()?;
    let mut image = [0u8; 64];
    image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    image[18] = 190;
    image[20] = 1;
    // SAFETY: a place for one handle; the image is all that its header says.
    assert_eq!(unsafe { hip::hipModuleLoadData(&mut null_mut(), image.as_ptr().cast()) }, 200);
    let text = rocm_loader::last_error().unwrap_or_default();
    assert!(text.contains("an object for an NVIDIA GPU"), "{text}");
    Ok(())
}
