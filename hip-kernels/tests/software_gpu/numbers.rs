//! Floats of every dtype in device memory, and the launch of a family's kernels.
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{DevicePtr, Element, KernelFamily, KernelOf};
use hip_kernels::{archs, code_object};

use super::{Buffer, DEVICES, Module, select};

/// A float dtype.
pub trait Dtype {
    /// Element type of kernels.
    const ELEMENT: Element;
    /// Distance from 1 to the next number.
    const EPSILON: f64;
    /// Storage type.
    type Bits: super::Element;
    /// Rounds a value and returns its bits.
    fn bits(value: f64) -> Self::Bits;
    /// Converts bits to their exact value.
    fn value(bits: Self::Bits) -> f64;
}

macro_rules! dtype {
    ($type:ty, $element:ident, $bits:ty, $from:expr, $to:expr, $epsilon:expr) => {
        impl Dtype for $type {
            const ELEMENT: Element = Element::$element;
            const EPSILON: f64 = $epsilon;
            type Bits = $bits;
            fn bits(value: f64) -> $bits {
                $from(value).to_bits()
            }
            fn value(bits: $bits) -> f64 {
                $to(<$type>::from_bits(bits))
            }
        }
    };
}
dtype!(f64, F64, u64, |value| value, |value| value, f64::EPSILON);
dtype!(f32, F32, u32, |value| value as f32, f64::from, f32::EPSILON as f64);
dtype!(f16, F16, u16, f16::from_f64, f64::from, 1.0 / 1024.0);
dtype!(bf16, Bf16, u16, bf16::from_f64, f64::from, 1.0 / 128.0);
dtype!(F8E4M3, F8e4m3, u8, F8E4M3::from_f64, |value: F8E4M3| value.to_f64(), 1.0 / 8.0);

/// A device buffer of floats.
pub struct Numbers<T: Dtype>(Buffer<T::Bits>);

impl<T: Dtype> Numbers<T> {
    /// Creates a buffer with values rounded to the dtype.
    pub fn new(values: &[f64]) -> Self {
        Self(Buffer::new(&values.iter().map(|value| T::bits(*value)).collect::<Vec<_>>()))
    }

    /// Reads the values.
    pub fn read(&self) -> Vec<f64> {
        self.0.read().into_iter().map(T::value).collect()
    }

    /// Returns the buffer as a kernel argument.
    pub fn pointer(&self) -> DevicePtr {
        DevicePtr(self.0.address())
    }
}

/// Launches a kernel of a family and waits for it.
pub fn launch<F: KernelFamily>(
    kernel: Option<KernelOf<F::Any>>,
    arguments: &F,
    arch: &str,
    grid: [u32; 3],
    block: [u32; 3],
) {
    let id = kernel.unwrap().id();
    assert!(block.iter().product::<u32>() <= F::BLOCK);
    let module = Module::load(&code_object(id.module(), arch).unwrap().bytes);
    let mut addresses: Vec<_> =
        arguments.arguments().as_ref().iter().map(|address| address.cast_mut()).collect();
    module.launch(id.name(), grid, block, &mut addresses);
}

/// Calls `check` for each architecture that has kernels, after selecting its device.
pub fn on_each_device(check: impl Fn(&'static str)) {
    let held: Vec<_> = DEVICES.into_iter().filter(|arch| archs().contains(arch)).collect();
    assert!(!held.is_empty(), "none of {DEVICES:?} was built");
    for arch in held {
        select(arch);
        check(arch);
    }
}

/// Returns pseudo-random numbers from -1 to 1.
pub fn noise(count: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..count).map(|_| next()).collect()
}
