//! Host memory that the allocator holds.

/// Returns freed memory to the operating system. The C library keeps it per thread, where one burst of long requests
/// would otherwise stay resident; replacing the allocator would add a C dependency for the same effect.
pub fn release_unused() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim may be called at any time from any thread; it only releases memory that is not in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
