//! Devices, and the current device of the calling thread. CUDA has a current context per thread. HIP's context is that of
//! the device: CUDA's primary context, which is retained at its first use.
#![allow(non_snake_case, reason = "named as in C")]
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rocm_rs::hip::bindings::{
    hipCtx_t, hipDevice_t, hipError_t, hipError_t_hipErrorInvalidContext, hipError_t_hipErrorInvalidDevice,
    hipError_t_hipErrorInvalidValue, hipError_t_hipErrorNotInitialized, hipError_t_hipErrorNotSupported,
};

use super::status::{SUCCESS, checked, fail};
use crate::cuda::{Code, Cuda, Handle};
use crate::running::{self, Device, Running};

/// Value of [`CURRENT`] while the thread has not selected a device.
const NONE: c_int = -1;

thread_local! {
    /// The device whose context is current on this thread.
    static CURRENT: Cell<c_int> = const { Cell::new(NONE) };
}

/// Returns the running driver, for a function that needs no context.
#[inline]
pub(super) fn running() -> Result<&'static Running, hipError_t> {
    running::running().ok_or_else(not_running)
}

#[cold]
fn not_running() -> hipError_t {
    fail(hipError_t_hipErrorNotInitialized, "the NVIDIA driver is not running".to_owned())
}

/// Calls CUDA with the thread's current context, or that of device 0 if it has selected none. `call` names the function.
#[inline]
pub(crate) fn with_context(call: &str, work: impl FnOnce(&'static Cuda) -> Code) -> hipError_t {
    let running = match running() {
        Ok(running) => running,
        Err(code) => return code,
    };
    if CURRENT.get() == NONE {
        match set_current(running, 0) {
            SUCCESS => {}
            code => return code,
        }
    }
    checked(running.cuda, call, work(running.cuda))
}

/// Defines HIP functions that forward their arguments to a CUDA function with a current context.
macro_rules! forwarded {
    ($($hip:ident => $cuda:ident($($argument:ident: $type:ty),*);)*) => { $(
        pub(crate) unsafe extern "C" fn $hip($($argument: $type),*) -> rocm_rs::hip::bindings::hipError_t {
            $crate::hip::context::with_context(stringify!($cuda), |cuda| {
                // SAFETY: the caller's handles, addresses and pointers.
                unsafe { (cuda.$cuda)($($argument),*) }
            })
        }
    )* };
}
pub(super) use forwarded;

forwarded! {
    hipDeviceSynchronize => cuCtxSynchronize();
}

/// Calls a CUDA function that needs no context.
#[inline]
pub(super) fn without_context(call: &str, work: impl FnOnce(&'static Running) -> Code) -> hipError_t {
    running().map_or_else(|code| code, |running| checked(running.cuda, call, work(running)))
}

/// Calls a CUDA function that takes the handle of a device.
pub(super) fn with_device(
    ordinal: c_int,
    call: &str,
    work: impl FnOnce(&'static Cuda, Handle) -> Code,
) -> hipError_t {
    let found = running().and_then(|running| Ok((running, device(running, ordinal)?)));
    match found {
        Ok((running, device)) => checked(running.cuda, call, work(running.cuda, device.handle)),
        Err(code) => code,
    }
}

/// Returns the ordinal of this thread's device.
pub(super) fn current() -> c_int {
    CURRENT.get().max(0)
}

/// Returns this thread's device, or `None` if the driver is not running.
pub(crate) fn current_device() -> Option<&'static Device> {
    running::running()?.devices.get(usize::try_from(current()).ok()?)
}

fn device(running: &'static Running, ordinal: c_int) -> Result<&'static Device, hipError_t> {
    usize::try_from(ordinal).ok().and_then(|ordinal| running.devices.get(ordinal)).ok_or_else(|| {
        let reason = format!("there is no device {ordinal}: CUDA has {}", running.devices.len());
        fail(hipError_t_hipErrorInvalidDevice, reason)
    })
}

/// Returns the primary context of a device, which is retained once.
pub(super) fn context(running: &'static Running, ordinal: c_int) -> Result<hipCtx_t, hipError_t> {
    let device = device(running, ordinal)?;
    let context = device.context.load(Ordering::Acquire);
    if !context.is_null() {
        return Ok(context);
    }
    let _guard = device.context_lock.lock().unwrap_or_else(PoisonError::into_inner);
    let mut context = device.context.load(Ordering::Acquire);
    if context.is_null() {
        // SAFETY: writes one handle.
        let code = unsafe { (running.cuda.cuDevicePrimaryCtxRetain)(&mut context, device.handle) };
        match checked(running.cuda, "cuDevicePrimaryCtxRetain", code) {
            SUCCESS => device.context.store(context, Ordering::Release),
            code => return Err(code),
        }
    }
    Ok(context)
}

/// Returns the ordinal of the device that owns a context.
pub(super) fn ordinal_of(running: &Running, context: hipCtx_t) -> Result<c_int, hipError_t> {
    let is_its = |device: &Device| device.context.load(Ordering::Acquire) == context;
    let found = running.devices.iter().position(is_its).filter(|_| !context.is_null());
    found
        .map(|ordinal| ordinal as c_int)
        .ok_or_else(|| fail(hipError_t_hipErrorInvalidContext, format!("{context:p} is no primary context")))
}

#[cold]
fn set_current(running: &'static Running, ordinal: c_int) -> hipError_t {
    let context = match context(running, ordinal) {
        Ok(context) => context,
        Err(code) => return code,
    };
    // SAFETY: a context that stays retained.
    let code = checked(running.cuda, "cuCtxSetCurrent", unsafe { (running.cuda.cuCtxSetCurrent)(context) });
    if code == SUCCESS {
        CURRENT.set(ordinal);
    }
    code
}

/// Writes a result through a pointer from the caller, and returns the error code.
///
/// # Safety
/// `to` is null or valid for a write of `T`.
pub(super) unsafe fn write_to<T>(to: *mut T, found: Result<T, hipError_t>) -> hipError_t {
    match found {
        Err(code) => code,
        Ok(_) if to.is_null() => null_pointer(),
        Ok(value) => {
            // SAFETY: the caller guarantees a valid pointer.
            unsafe { to.write(value) };
            SUCCESS
        }
    }
}

#[cold]
pub(super) fn null_pointer() -> hipError_t {
    fail(hipError_t_hipErrorInvalidValue, "a pointer to write to is null".to_owned())
}

pub(crate) unsafe extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    // SAFETY: takes an integer.
    without_context("cuInit", |running| unsafe { (running.cuda.cuInit)(flags) })
}

pub(crate) unsafe extern "C" fn hipDriverGetVersion(_: *mut c_int) -> hipError_t {
    no_hip()
}

pub(crate) unsafe extern "C" fn hipRuntimeGetVersion(_: *mut c_int) -> hipError_t {
    no_hip()
}

fn no_hip() -> hipError_t {
    fail(
        hipError_t_hipErrorNotSupported,
        "HIP has no version here: the NVIDIA driver runs on CUDA".to_owned(),
    )
}

pub(crate) unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(count, running().map(|running| running.devices.len() as c_int)) }
}

pub(crate) unsafe extern "C" fn hipGetDevice(deviceId: *mut c_int) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(deviceId, Ok(current())) }
}

pub(crate) unsafe extern "C" fn hipSetDevice(deviceId: c_int) -> hipError_t {
    running().map_or_else(|code| code, |running| set_current(running, deviceId))
}

pub(crate) unsafe extern "C" fn hipDeviceGet(to: *mut hipDevice_t, ordinal: c_int) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(to, running().and_then(|running| device(running, ordinal).map(|_| ordinal))) }
}

pub(crate) unsafe extern "C" fn hipDeviceCanAccessPeer(
    canAccessPeer: *mut c_int,
    deviceId: c_int,
    peerDeviceId: c_int,
) -> hipError_t {
    let peer = match running().and_then(|running| device(running, peerDeviceId)) {
        Ok(peer) => peer.handle,
        Err(code) => return code,
    };
    with_device(deviceId, "cuDeviceCanAccessPeer", |cuda, device| {
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { (cuda.cuDeviceCanAccessPeer)(canAccessPeer, device, peer) }
    })
}

pub(crate) unsafe extern "C" fn hipDeviceEnablePeerAccess(peerDeviceId: c_int, flags: c_uint) -> hipError_t {
    match running().and_then(|running| context(running, peerDeviceId)) {
        Ok(peer) => with_context("cuCtxEnablePeerAccess", |cuda| {
            // SAFETY: a context that stays retained.
            unsafe { (cuda.cuCtxEnablePeerAccess)(peer, flags) }
        }),
        Err(code) => code,
    }
}

/// Destroys all resources of the device. The next use creates a new context.
pub(crate) unsafe extern "C" fn hipDeviceReset() -> hipError_t {
    let found = running().and_then(|running| Ok((running, device(running, current())?)));
    let (running, device) = match found {
        Ok(found) => found,
        Err(code) => return code,
    };
    let _guard = device.context_lock.lock().unwrap_or_else(PoisonError::into_inner);
    let retained = !device.context.swap(null_mut(), Ordering::AcqRel).is_null();
    device.cublas_handles.lock().unwrap_or_else(PoisonError::into_inner).clear();
    CURRENT.set(NONE);
    // SAFETY: the caller uses no resource of the device any more; the context retained before is released once.
    let code = unsafe {
        match (running.cuda.cuDevicePrimaryCtxReset)(device.handle) {
            0 if retained => (running.cuda.cuDevicePrimaryCtxRelease)(device.handle),
            code => code,
        }
    };
    checked(running.cuda, "cuDevicePrimaryCtxReset", code)
}

pub(crate) unsafe extern "C" fn hipCtxCreate(
    ctx: *mut hipCtx_t,
    _: c_uint,
    device: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    match unsafe { hipDevicePrimaryCtxRetain(ctx, device) } {
        // SAFETY: takes an integer.
        SUCCESS => unsafe { hipSetDevice(device) },
        code => code,
    }
}

/// Only checks the argument: the device's primary context stays.
pub(crate) unsafe extern "C" fn hipCtxDestroy(ctx: hipCtx_t) -> hipError_t {
    let found = running().and_then(|running| ordinal_of(running, ctx));
    found.map_or_else(|code| code, |_| SUCCESS)
}

pub(crate) unsafe extern "C" fn hipCtxGetCurrent(ctx: *mut hipCtx_t) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(ctx, running().and_then(|running| context(running, current()))) }
}

/// Ignores a null context, because a thread always has a device.
pub(crate) unsafe extern "C" fn hipCtxSetCurrent(ctx: hipCtx_t) -> hipError_t {
    if ctx.is_null() {
        return SUCCESS;
    }
    let found = running().and_then(|running| Ok((running, ordinal_of(running, ctx)?)));
    found.map_or_else(|code| code, |(running, ordinal)| set_current(running, ordinal))
}

pub(crate) unsafe extern "C" fn hipDevicePrimaryCtxRetain(
    pctx: *mut hipCtx_t,
    dev: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(pctx, running().and_then(|running| context(running, dev))) }
}

/// Only checks the argument: the context stays retained by this process.
pub(crate) unsafe extern "C" fn hipDevicePrimaryCtxRelease(dev: hipDevice_t) -> hipError_t {
    let found = running().and_then(|running| device(running, dev));
    found.map_or_else(|code| code, |_| SUCCESS)
}
