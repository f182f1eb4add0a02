//! Each of upstream's test files is a module of this one program.
#![allow(warnings, clippy::all)]

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};

// What candle-nn's tests call it.
extern crate candle_core as candle;

include!(concat!(
    env!("CANDLE_UPSTREAM_SUITES", "`cargo xtask upstream-tests` builds this and says where the files are"),
    "/suites.rs"
));

/// The device in the place of `Device::Cpu`. Every thread, and so every test, has one of its own, as with
/// `test_device!`: tensors of two devices do not mix, and a failing test does not disturb the next.
fn rocm_device() -> candle_core::Device {
    static DEVICES: OnceLock<Mutex<HashMap<ThreadId, candle_core::Device>>> = OnceLock::new();
    let mut devices = DEVICES.get_or_init(Mutex::default).lock().expect("no test panics while it holds this");
    let device = devices.entry(thread::current().id());
    device.or_insert_with(|| candle_core::Device::new_rocm(0).expect("a ROCm device")).clone()
}
