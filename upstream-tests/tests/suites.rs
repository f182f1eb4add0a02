//! Test program with one module per test file of upstream.
#![allow(warnings, clippy::all)]

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};

// Name of the crate in candle-nn's tests.
extern crate candle_core as candle;

include!(concat!(
    env!("CANDLE_UPSTREAM_SUITES", "set by `cargo xtask upstream-tests`, which builds this package"),
    "/suites.rs"
));

/// Returns the device that replaces `Device::Cpu`. Every thread, and so every test, has its own, as with
/// `test_device!`: a failing test does not affect the next one.
fn rocm_device() -> candle_core::Device {
    static DEVICES: OnceLock<Mutex<HashMap<ThreadId, candle_core::Device>>> = OnceLock::new();
    let mut devices = DEVICES.get_or_init(Mutex::default).lock().expect("the lock is not poisoned");
    let device = devices.entry(thread::current().id());
    device.or_insert_with(|| candle_core::Device::new_rocm(0).expect("a ROCm device")).clone()
}
