//! Launches kernels on the software GPU through its HIP API.
#![allow(dead_code, reason = "each test program uses a part of it")]
use std::ffi::{CString, c_void};
use std::marker::PhantomData;

use rocm_emulator::api;

pub mod numbers;
pub mod products;

/// Architecture that the tests run on.
pub const ARCH: &str = "gfx1100";
/// Lanes per wave of [`ARCH`].
pub const WAVE: usize = 32;
/// Devices: one with each kind of matrix unit and one without. The first one is the default device of a thread.
pub const DEVICES: [&str; 6] = [ARCH, "gfx90a", "gfx908", "gfx942", "gfx1030", "gfx1201"];

/// Numbers that may be copied byte by byte.
pub trait Element: Copy + Default {
    /// Returns the bytes in memory.
    fn to_bytes(self) -> Vec<u8>;
}

macro_rules! elements {
    ($($type:ty),*) => {
        $(impl Element for $type {
            fn to_bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        })*
    };
}
elements!(u8, u16, u32, i32, u64, usize);

/// Configures the devices; only the first call has an effect.
fn configure() {
    rocm_emulator::configure(&DEVICES).unwrap();
}

/// Selects the device of an architecture for this thread.
pub fn select(arch: &str) {
    configure();
    let device = DEVICES.iter().position(|known| *known == arch).unwrap();
    // SAFETY: the function takes a number and checks it.
    check(unsafe { api::hipSetDevice(device as i32) }, "hipSetDevice");
}

fn check(code: u32, call: &str) {
    assert_eq!(code, 0, "{call}: {:?} {:?}", rocm_emulator::last_error(), rocm_emulator::last_fault());
}

/// A loaded code object.
pub struct Module(*mut c_void);

/// Device memory for `len` elements.
pub struct Buffer<T> {
    address: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

impl Module {
    pub fn load(code_object: &[u8]) -> Self {
        configure();
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a whole code object and the result pointer is a local.
        check(
            unsafe { api::hipModuleLoadData(&mut module, code_object.as_ptr().cast()) },
            "hipModuleLoadData",
        );
        Self(module)
    }

    /// Launches a kernel and waits for it. `arguments` are the addresses of its arguments, in order.
    pub fn launch(&self, kernel: &str, grid: [u32; 3], block: [u32; 3], arguments: &mut [*mut c_void]) {
        self.launch_with_lds(kernel, grid, block, 0, arguments);
    }

    /// Like [`Self::launch`], with dynamic LDS.
    pub fn launch_with_lds(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        lds: u32,
        arguments: &mut [*mut c_void],
    ) {
        let name = CString::new(kernel).unwrap();
        let mut function = std::ptr::null_mut();
        // SAFETY: the name ends with a zero byte and the result pointer is a local.
        check(unsafe { api::hipModuleGetFunction(&mut function, self.0, name.as_ptr()) }, kernel);
        let (stream, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        let ([x, y, z], [x_threads, y_threads, z_threads], values) = (grid, block, arguments.as_mut_ptr());
        // SAFETY: every argument pointer is valid for the size in the kernel's metadata, as the caller guarantees.
        #[rustfmt::skip]
        let code = unsafe {
            api::hipModuleLaunchKernel(
                function, x, y, z, x_threads, y_threads, z_threads, lds, stream, values, none,
            )
        };
        check(code, kernel);
        // SAFETY: the null stream always exists.
        check(unsafe { api::hipStreamSynchronize(stream) }, kernel);
    }

    /// Writes the address of `buffer` to a global pointer of the code object.
    pub fn set_pointer<T>(&self, name: &str, buffer: &Buffer<T>) {
        let name = CString::new(name).unwrap();
        let mut global = std::ptr::null_mut();
        let mut size = 0usize;
        // SAFETY: the name ends with a zero byte, the result pointers are locals, and the global has the size of
        // a pointer, which is asserted before the copy.
        unsafe {
            check(
                api::hipModuleGetGlobal(&mut global, &mut size, self.0, name.as_ptr()),
                "hipModuleGetGlobal",
            );
            assert_eq!(size, size_of::<*mut c_void>());
            let source = (&raw const buffer.address).cast();
            check(api::hipMemcpy(global, source, size, api::hipMemcpyHostToDevice), "hipMemcpy");
        }
    }

    /// Launches one thread per element in blocks of 256.
    pub fn launch_linear(&self, kernel: &str, count: usize, arguments: &mut [*mut c_void]) {
        self.launch(kernel, [count.div_ceil(256) as u32, 1, 1], [256, 1, 1], arguments);
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the handle is this module's own and no launch is pending: launches wait.
        unsafe { api::hipModuleUnload(self.0) };
    }
}

impl<T: Element> Buffer<T> {
    pub fn new(values: &[T]) -> Self {
        configure();
        let mut address = std::ptr::null_mut();
        let bytes = size_of_val(values);
        // SAFETY: the result pointer is a local; the copy reads `bytes` from the slice.
        unsafe {
            check(api::hipMalloc(&mut address, bytes), "hipMalloc");
            check(
                api::hipMemcpy(address, values.as_ptr().cast(), bytes, api::hipMemcpyHostToDevice),
                "hipMemcpy",
            );
        }
        Self { address, len: values.len(), element: PhantomData }
    }

    pub fn zeroed(len: usize) -> Self {
        Self::new(&vec![T::default(); len])
    }

    pub fn read(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.len];
        let bytes = size_of_val(values.as_slice());
        // SAFETY: the copy writes `bytes` into the vector, which has that many.
        let code = unsafe {
            api::hipMemcpy(values.as_mut_ptr().cast(), self.address, bytes, api::hipMemcpyDeviceToHost)
        };
        check(code, "hipMemcpy");
        values
    }

    pub fn write(&self, values: &[T]) {
        assert_eq!(values.len(), self.len);
        let bytes = size_of_val(values);
        // SAFETY: the copy reads `bytes` from the slice, and the buffer has that many.
        let code = unsafe {
            api::hipMemcpy(self.address, values.as_ptr().cast(), bytes, api::hipMemcpyHostToDevice)
        };
        check(code, "hipMemcpy");
    }

    /// Returns the address in device memory.
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    /// Returns the buffer as a kernel argument.
    pub fn argument(&self) -> *mut c_void {
        (&raw const self.address).cast_mut().cast()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the address came from hipMalloc and no launch is pending: launches wait.
        unsafe { api::hipFree(self.address) };
    }
}

/// Returns a value as a kernel argument.
pub fn argument<T: Copy>(value: &T) -> *mut c_void {
    (&raw const *value).cast_mut().cast()
}
