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

c_functions! {
    /// Makes a device current and returns its context.
    fn hipCtxCreate(ctx: *mut hipCtx_t, _flags: u32, device: hipDevice_t) -> ctx |runtime| {
        let device = runtime.device(ordinal(device)?)?.ordinal;
        not_null(ctx)?;
        runtime::set_device(device);
        handle(device)
    }

    /// Checks the handle; the device's context stays.
    fn hipCtxDestroy(ctx: hipCtx_t) |runtime| {
        device_of(runtime, ctx).map(drop)
    }

    /// Returns the current device's context.
    fn hipCtxGetCurrent(ctx: *mut hipCtx_t) -> ctx |runtime| {
        handle(runtime.current_device()?.ordinal)
    }

    /// Makes a context's device current. Null has no effect.
    fn hipCtxSetCurrent(ctx: hipCtx_t) |runtime| {
        if !ctx.is_null() {
            runtime::set_device(device_of(runtime, ctx)?);
        }
        Ok(())
    }

    /// Returns the current device.
    fn hipCtxGetDevice(device: *mut hipDevice_t) -> device |runtime| {
        runtime.current_device()?.ordinal as i32
    }

    /// Waits for the current device.
    fn hipCtxSynchronize() |runtime| {
        runtime.current_device()?.synchronize()
    }

    /// Returns the context of a device.
    fn hipDevicePrimaryCtxRetain(pctx: *mut hipCtx_t, dev: hipDevice_t) -> pctx |runtime| {
        handle(runtime.device(ordinal(dev)?)?.ordinal)
    }

    /// Checks the device; its context stays.
    fn hipDevicePrimaryCtxRelease(dev: hipDevice_t) |runtime| {
        runtime.device(ordinal(dev)?).map(drop)
    }
}
