//! HIP contexts. As in AMD's runtime, each device has one context, and making it current makes the device current.
use super::*;
use std::ffi::c_void;

/// Context handles are `FIRST + ordinal * STEP`, so that no small number is a valid handle.
const FIRST: usize = 0x0c00_0000_0010;
const STEP: usize = 16;

fn handle(device: usize) -> hipCtx_t {
    std::ptr::without_provenance_mut::<c_void>(FIRST + STEP * device)
}

fn device_of(runtime: &Runtime, ctx: hipCtx_t) -> Result<usize> {
    let number = ctx.addr().wrapping_sub(FIRST);
    if number.is_multiple_of(STEP) && number / STEP < runtime.devices().len() {
        Ok(number / STEP)
    } else {
        fail(ErrorCode::InvalidContext, format!("{ctx:?} is not a context"))
    }
}

/// Makes a device current and returns its context.
pub unsafe extern "C" fn hipCtxCreate(ctx: *mut hipCtx_t, flags: u32, device: hipDevice_t) -> hipError_t {
    let _ = flags;
    call("hipCtxCreate", |runtime| {
        let device = runtime.device(ordinal(device)?)?.ordinal;
        // SAFETY: the caller's pointer.
        unsafe { put(ctx, handle(device))? };
        runtime::set_device(device);
        Ok(())
    })
}

/// Checks the handle; the device's context stays.
pub unsafe extern "C" fn hipCtxDestroy(ctx: hipCtx_t) -> hipError_t {
    call("hipCtxDestroy", |runtime| device_of(runtime, ctx).map(drop))
}

/// Returns the current device's context.
pub unsafe extern "C" fn hipCtxGetCurrent(ctx: *mut hipCtx_t) -> hipError_t {
    call("hipCtxGetCurrent", |runtime| {
        // SAFETY: the caller's pointer.
        unsafe { put(ctx, handle(runtime.current_device()?.ordinal)) }
    })
}

/// Makes a context's device current. Null has no effect.
pub unsafe extern "C" fn hipCtxSetCurrent(ctx: hipCtx_t) -> hipError_t {
    call("hipCtxSetCurrent", |runtime| {
        if !ctx.is_null() {
            runtime::set_device(device_of(runtime, ctx)?);
        }
        Ok(())
    })
}

/// Returns the current device.
pub unsafe extern "C" fn hipCtxGetDevice(device: *mut hipDevice_t) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipCtxGetDevice", |runtime| unsafe { put(device, runtime.current_device()?.ordinal as i32) })
}

/// Waits for the current device.
pub unsafe extern "C" fn hipCtxSynchronize() -> hipError_t {
    call("hipCtxSynchronize", |runtime| runtime.current_device()?.synchronize())
}

/// Returns the context of a device.
pub unsafe extern "C" fn hipDevicePrimaryCtxRetain(pctx: *mut hipCtx_t, dev: hipDevice_t) -> hipError_t {
    call("hipDevicePrimaryCtxRetain", |runtime| {
        let device = runtime.device(ordinal(dev)?)?.ordinal;
        // SAFETY: the caller's pointer.
        unsafe { put(pctx, handle(device)) }
    })
}

/// Checks the device; its context stays.
pub unsafe extern "C" fn hipDevicePrimaryCtxRelease(dev: hipDevice_t) -> hipError_t {
    call("hipDevicePrimaryCtxRelease", |runtime| runtime.device(ordinal(dev)?).map(drop))
}
