//! Descriptors of tensors and convolutions: numbers, so that an invalid one causes an error code instead of a crash.
use super::status::{Outcome, Status, bad_parm, reject, stale};
use crate::runtime::{ErrorCode, Handles};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

/// An element type (`miopenDataType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    F16,
    F32,
    Bf16,
    /// A MIOpen type that convolutions do not support here.
    Other(u32),
}

impl DataType {
    fn new(code: u32) -> Outcome<Self> {
        match code {
            0 => Ok(Self::F16),
            1 => Ok(Self::F32),
            5 => Ok(Self::Bf16),
            2 | 3 | 6..=9 => Ok(Self::Other(code)),
            _ => bad_parm(format!("unknown element type {code}")),
        }
    }
}

/// Contents of a tensor descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub kind: DataType,
    pub dims: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<usize>,
}

/// Supported numbers of dimensions of a tensor.
const RANKS: std::ops::RangeInclusive<usize> = 2..=5;

impl Tensor {
    /// Validates the contents. Without strides the tensor is packed, with the last dimension innermost.
    ///
    /// # Errors
    /// `BadParm`.
    pub fn new(kind: u32, dims: &[i32], strides: Option<&[i32]>) -> Outcome<Self> {
        let kind = DataType::new(kind)?;
        if !RANKS.contains(&dims.len()) || dims.iter().any(|dim| *dim < 1) {
            return bad_parm(format!("dimensions {dims:?}; there must be 2 to 5, each at least 1"));
        }
        if let Some(strides) = strides.filter(|strides| strides.iter().any(|stride| *stride < 0)) {
            return bad_parm(format!("strides {strides:?}; none may be negative"));
        }
        let plain = |values: &[i32]| values.iter().map(|value| *value as usize).collect::<Vec<_>>();
        let dims = plain(dims);
        let tensor = match strides {
            Some(strides) => Some(Self { kind, strides: plain(strides), dims }),
            None => packed(&dims).map(|strides| Self { kind, strides, dims }),
        };
        match tensor.filter(|tensor| tensor.extent().is_some()) {
            Some(tensor) => Ok(tensor),
            None => bad_parm("the tensor has more elements than the address space"),
        }
    }

    /// Returns the bytes from the first to the last element for the largest type; `None` if they exceed the address
    /// space.
    fn extent(&self) -> Option<usize> {
        let elements = self.dims.iter().try_fold(1usize, |elements, dim| elements.checked_mul(*dim))?;
        let mut steps = self.dims.iter().zip(&self.strides);
        let last =
            steps.try_fold(0usize, |last, (dim, stride)| last.checked_add((dim - 1).checked_mul(*stride)?));
        // The size in bytes must also fit for every type.
        elements.max(last?.checked_add(1)?).checked_mul(8)
    }
}

/// Returns the strides of a packed tensor; `None` if the number of elements overflows.
pub fn packed(dims: &[usize]) -> Option<Vec<usize>> {
    let mut strides = vec![1usize; dims.len()];
    for index in (1..dims.len()).rev() {
        strides[index - 1] = strides[index].checked_mul(dims[index])?;
    }
    Some(strides)
}

/// Contents of a convolution descriptor, rows before columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

impl Convolution {
    /// Validates the contents and creates a convolution with one group.
    ///
    /// # Errors
    /// `UnsupportedOp` for the transpose mode, `BadParm` for invalid values.
    pub fn new(mode: u32, padding: [i32; 2], stride: [i32; 2], dilation: [i32; 2]) -> Outcome<Self> {
        match mode {
            0 => {}
            1 => return reject(Status::UnsupportedOp, "the software GPU does not support miopenTranspose"),
            _ => return bad_parm(format!("unknown convolution mode {mode}")),
        }
        let small = |values: [i32; 2], least| values.iter().any(|value| *value < least);
        if small(padding, 0) || small(stride, 1) || small(dilation, 1) {
            return bad_parm(format!(
                "invalid convolution: padding {padding:?}, stride {stride:?}, dilation {dilation:?}"
            ));
        }
        let plain = |values: [i32; 2]| values.map(|value| value as usize);
        let (padding, stride, dilation) = (plain(padding), plain(stride), plain(dilation));
        Ok(Self { padding, stride, dilation, groups: 1 })
    }
}

/// Table of live descriptors of one kind. They are empty until they are set.
pub struct Descriptors<T>(LazyLock<Handles<Mutex<Option<T>>>>);

/// All tensor descriptors.
pub static TENSORS: Descriptors<Tensor> =
    Descriptors(LazyLock::new(|| Handles::new(0x31, "a tensor descriptor", ErrorCode::InvalidHandle)));
/// All convolution descriptors.
pub static CONVOLUTIONS: Descriptors<Convolution> =
    Descriptors(LazyLock::new(|| Handles::new(0x32, "a convolution descriptor", ErrorCode::InvalidHandle)));

impl<T: Clone> Descriptors<T> {
    /// Creates an empty descriptor.
    pub fn create(&self) -> *mut c_void {
        self.0.insert(Arc::new(Mutex::new(None)))
    }

    /// Sets the contents.
    ///
    /// # Errors
    /// `BadParm` if it is not live.
    pub fn set(&self, descriptor: *mut c_void, value: T) -> Outcome {
        *self.0.get(descriptor).map_err(stale)?.lock() = Some(value);
        Ok(())
    }

    /// Returns the contents.
    ///
    /// # Errors
    /// `BadParm` if it is not live or was not set.
    pub fn get(&self, descriptor: *mut c_void) -> Outcome<T> {
        let value = self.0.get(descriptor).map_err(stale)?.lock().clone();
        value.map_or_else(|| bad_parm(format!("the descriptor {descriptor:?} is not set")), Ok)
    }

    /// Destroys a descriptor.
    ///
    /// # Errors
    /// `BadParm` if it is not live.
    pub fn destroy(&self, descriptor: *mut c_void) -> Outcome {
        self.0.remove(descriptor).map(drop).map_err(stale)
    }
}
