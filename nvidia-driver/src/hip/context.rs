//! Devices and the calling thread's current one. CUDA keeps a context per thread; HIP's is the device's own, which is
//! CUDA's primary context, retained at its first use.
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

use super::status::{SUCCESS, refused, told};
use crate::cuda::{Code, Cuda, Handle};
use crate::running::{self, Device, Running};

/// No device was chosen by this thread yet.
const NONE: c_int = -1;

thread_local! {
    /// The device whose context is current on this thread.
    static CURRENT: Cell<c_int> = const { Cell::new(NONE) };
}

/// The running driver for a function that needs no context.
#[inline]
pub(super) fn running() -> Result<&'static Running, hipError_t> {
    running::running().ok_or_else(not_running)
}

#[cold]
fn not_running() -> hipError_t {
    refused(hipError_t_hipErrorNotInitialized, "the NVIDIA driver does not run".to_owned())
}

/// Calls CUDA with a context: the thread's own, or device 0's if it has chosen none. `call` names the function.
#[inline]
pub(crate) fn with_context(call: &str, work: impl FnOnce(&'static Cuda) -> Code) -> hipError_t {
    let running = match running() {
        Ok(running) => running,
        Err(code) => return code,
    };
    if CURRENT.get() == NONE {
        match choose(running, 0) {
            SUCCESS => {}
            code => return code,
        }
    }
    told(running.cuda, call, work(running.cuda))
}

/// Defines functions of HIP that hand their arguments on to one of CUDA with a context.
macro_rules! handed_on {
    ($($hip:ident => $cuda:ident($($argument:ident: $type:ty),*);)*) => { $(
        pub(crate) unsafe extern "C" fn $hip($($argument: $type),*) -> rocm_rs::hip::bindings::hipError_t {
            $crate::hip::context::with_context(stringify!($cuda), |cuda| {
                // SAFETY: the caller's handles, addresses and places.
                unsafe { (cuda.$cuda)($($argument),*) }
            })
        }
    )* };
}
pub(super) use handed_on;

handed_on! {
    hipDeviceSynchronize => cuCtxSynchronize();
}

/// The same for a function that needs none.
#[inline]
pub(super) fn without_context(call: &str, work: impl FnOnce(&'static Running) -> Code) -> hipError_t {
    running().map_or_else(|code| code, |running| told(running.cuda, call, work(running)))
}

/// The same for one that asks about a device.
pub(super) fn about_device(
    ordinal: c_int,
    call: &str,
    work: impl FnOnce(&'static Cuda, Handle) -> Code,
) -> hipError_t {
    let found = running().and_then(|running| Ok((running, device(running, ordinal)?)));
    match found {
        Ok((running, device)) => told(running.cuda, call, work(running.cuda, device.handle)),
        Err(code) => code,
    }
}

/// The number of this thread's device.
pub(super) fn current() -> c_int {
    CURRENT.get().max(0)
}

fn device(running: &'static Running, ordinal: c_int) -> Result<&'static Device, hipError_t> {
    usize::try_from(ordinal).ok().and_then(|ordinal| running.devices.get(ordinal)).ok_or_else(|| {
        let reason = format!("there is no device {ordinal}: CUDA has {}", running.devices.len());
        refused(hipError_t_hipErrorInvalidDevice, reason)
    })
}

/// The primary context of a device, retained once.
pub(super) fn context(running: &'static Running, ordinal: c_int) -> Result<hipCtx_t, hipError_t> {
    let device = device(running, ordinal)?;
    let context = device.context.load(Ordering::Acquire);
    if !context.is_null() {
        return Ok(context);
    }
    let _changing = device.changing.lock().unwrap_or_else(PoisonError::into_inner);
    let mut context = device.context.load(Ordering::Acquire);
    if context.is_null() {
        // SAFETY: writes one handle.
        let code = unsafe { (running.cuda.cuDevicePrimaryCtxRetain)(&mut context, device.handle) };
        match told(running.cuda, "cuDevicePrimaryCtxRetain", code) {
            SUCCESS => device.context.store(context, Ordering::Release),
            code => return Err(code),
        }
    }
    Ok(context)
}

/// The number of the device whose context this is.
pub(super) fn ordinal_of(running: &Running, context: hipCtx_t) -> Result<c_int, hipError_t> {
    let is_its = |device: &Device| device.context.load(Ordering::Acquire) == context;
    let found = running.devices.iter().position(is_its).filter(|_| !context.is_null());
    found.map(|ordinal| ordinal as c_int).ok_or_else(|| {
        refused(hipError_t_hipErrorInvalidContext, format!("{context:p} is no device's own context"))
    })
}

#[cold]
fn choose(running: &'static Running, ordinal: c_int) -> hipError_t {
    let context = match context(running, ordinal) {
        Ok(context) => context,
        Err(code) => return code,
    };
    // SAFETY: a context that stays retained.
    let code = told(running.cuda, "cuCtxSetCurrent", unsafe { (running.cuda.cuCtxSetCurrent)(context) });
    if code == SUCCESS {
        CURRENT.set(ordinal);
    }
    code
}

/// Writes what was found through a pointer of the caller's.
///
/// # Safety
/// `to` is null or a place for one `T`.
pub(super) unsafe fn give<T>(to: *mut T, found: Result<T, hipError_t>) -> hipError_t {
    match found {
        Err(code) => code,
        Ok(_) if to.is_null() => null_pointer(),
        Ok(value) => {
            // SAFETY: the caller's place.
            unsafe { to.write(value) };
            SUCCESS
        }
    }
}

#[cold]
pub(super) fn null_pointer() -> hipError_t {
    refused(hipError_t_hipErrorInvalidValue, "a pointer to write to is null".to_owned())
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
    refused(
        hipError_t_hipErrorNotSupported,
        "there is no HIP, whose version could be told: this is CUDA".to_owned(),
    )
}

pub(crate) unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { give(count, running().map(|running| running.devices.len() as c_int)) }
}

pub(crate) unsafe extern "C" fn hipGetDevice(deviceId: *mut c_int) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { give(deviceId, Ok(current())) }
}

pub(crate) unsafe extern "C" fn hipSetDevice(deviceId: c_int) -> hipError_t {
    running().map_or_else(|code| code, |running| choose(running, deviceId))
}

pub(crate) unsafe extern "C" fn hipDeviceGet(to: *mut hipDevice_t, ordinal: c_int) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { give(to, running().and_then(|running| device(running, ordinal).map(|_| ordinal))) }
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
    about_device(deviceId, "cuDeviceCanAccessPeer", |cuda, device| {
        // SAFETY: the caller's place.
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

/// All that the device holds is gone; its context begins anew at the next use.
pub(crate) unsafe extern "C" fn hipDeviceReset() -> hipError_t {
    let found = running().and_then(|running| Ok((running, device(running, current())?)));
    let (running, device) = match found {
        Ok(found) => found,
        Err(code) => return code,
    };
    let _changing = device.changing.lock().unwrap_or_else(PoisonError::into_inner);
    let retained = !device.context.swap(null_mut(), Ordering::AcqRel).is_null();
    CURRENT.set(NONE);
    // SAFETY: the caller has given up all that the device holds; what was retained above is released once.
    let code = unsafe {
        match (running.cuda.cuDevicePrimaryCtxReset)(device.handle) {
            0 if retained => (running.cuda.cuDevicePrimaryCtxRelease)(device.handle),
            code => code,
        }
    };
    told(running.cuda, "cuDevicePrimaryCtxReset", code)
}

pub(crate) unsafe extern "C" fn hipCtxCreate(
    ctx: *mut hipCtx_t,
    _: c_uint,
    device: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller's place.
    match unsafe { hipDevicePrimaryCtxRetain(ctx, device) } {
        // SAFETY: takes an integer.
        SUCCESS => unsafe { hipSetDevice(device) },
        code => code,
    }
}

/// The device's own context stays.
pub(crate) unsafe extern "C" fn hipCtxDestroy(ctx: hipCtx_t) -> hipError_t {
    let found = running().and_then(|running| ordinal_of(running, ctx));
    found.map_or_else(|code| code, |_| SUCCESS)
}

pub(crate) unsafe extern "C" fn hipCtxGetCurrent(ctx: *mut hipCtx_t) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { give(ctx, running().and_then(|running| context(running, current()))) }
}

/// Null changes nothing: a thread always has a device.
pub(crate) unsafe extern "C" fn hipCtxSetCurrent(ctx: hipCtx_t) -> hipError_t {
    if ctx.is_null() {
        return SUCCESS;
    }
    let found = running().and_then(|running| Ok((running, ordinal_of(running, ctx)?)));
    found.map_or_else(|code| code, |(running, ordinal)| choose(running, ordinal))
}

pub(crate) unsafe extern "C" fn hipDevicePrimaryCtxRetain(
    pctx: *mut hipCtx_t,
    dev: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { give(pctx, running().and_then(|running| context(running, dev))) }
}

/// The context stays retained by this process.
pub(crate) unsafe extern "C" fn hipDevicePrimaryCtxRelease(dev: hipDevice_t) -> hipError_t {
    let found = running().and_then(|running| device(running, dev));
    found.map_or_else(|code| code, |_| SUCCESS)
}
