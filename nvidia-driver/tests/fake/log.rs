//! Shared parts of the stand-ins: a record of their calls, and functions that return success.
use std::sync::Mutex;

/// A line a call.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a line.
pub fn log(line: String) {
    LOG.lock().unwrap().push(line);
}

/// Copies the log to `to`, which has room for `len` bytes, and empties it. Returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_take_log(to: *mut u8, len: usize) -> usize {
    let text = std::mem::take(&mut *LOG.lock().unwrap()).join("\n");
    let len = len.min(text.len());
    unsafe { to.copy_from_nonoverlapping(text.as_ptr(), len) };
    len
}

/// Defines functions that return success.
#[allow(unused_macros)]
macro_rules! succeed {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            #[allow(unused_unsafe)]
            unsafe { $body }
            0
        }
    )* };
}
