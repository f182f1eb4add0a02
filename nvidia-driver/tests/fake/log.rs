//! Shared parts of the fake libraries: a log of their calls, and functions that return success.
use std::sync::Mutex;

/// One line per call.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Appends a line to the log.
pub fn log(line: String) {
    LOG.lock().unwrap().push(line);
}

/// Copies the log to `to`, a buffer of `len` bytes, and clears it. Returns the number of bytes copied.
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
