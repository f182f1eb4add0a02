//! MIOpen's tensor descriptors, and cuDNN's descriptors of tensors and weights.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::c_int;
use std::sync::OnceLock;

use rocm_rs::miopen::ffi::{self as miopen, miopenDataType_t, miopenStatus_t, miopenTensorDescriptor_t};

use super::cudnn::{DataType, Object, bad_param, to_status, unsupported};
use super::descriptor::{Cached, destroy, get_or_create, list, write_descriptor};

/// Maximum number of dimensions: batch, channels and three spatial ones.
pub(super) const MAX_RANK: usize = 5;

/// `CUDNN_DATA_FLOAT`.
pub(super) const FLOAT: DataType = 0;
/// `CUDNN_DATA_DOUBLE`.
pub(super) const DOUBLE: DataType = 1;
/// `CUDNN_DATA_HALF`.
const HALF: DataType = 2;
/// `CUDNN_DATA_BFLOAT16`.
const BFLOAT16: DataType = 9;
/// `CUDNN_TENSOR_NCHW`, which is also used for three spatial dimensions.
const CHANNELS_FIRST: u32 = 0;

fn data_type(data_type: miopenDataType_t) -> Result<DataType, miopenStatus_t> {
    Ok(match data_type {
        miopen::miopenDataType_t_miopenHalf => HALF,
        miopen::miopenDataType_t_miopenFloat => FLOAT,
        miopen::miopenDataType_t_miopenBFloat16 => BFLOAT16,
        miopen::miopenDataType_t_miopenDouble => DOUBLE,
        other => {
            return Err(unsupported(format!(
                "the NVIDIA driver has no counterpart of MIOpen's type {other}"
            )));
        }
    })
}

/// Data type, sizes and strides of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) data_type: DataType,
    rank: usize,
    sizes: [c_int; MAX_RANK],
    strides: [c_int; MAX_RANK],
}

impl Shape {
    fn of(data_type: DataType, sizes: &[c_int], strides: Option<&[c_int]>) -> Result<Self, miopenStatus_t> {
        let rank = sizes.len();
        if !(4..=MAX_RANK).contains(&rank) {
            let reason = format!("the NVIDIA driver supports tensors of 4 and 5 dimensions, not {rank}");
            return Err(unsupported(reason));
        }
        let mut shape = Self { data_type, rank, sizes: [1; MAX_RANK], strides: [1; MAX_RANK] };
        shape.sizes[..rank].copy_from_slice(sizes);
        match strides {
            Some(strides) => shape.strides[..rank].copy_from_slice(strides),
            None => {
                shape.strides =
                    shape.packed().ok_or_else(|| bad_param(format!("{sizes:?} is not a tensor shape")))?
            }
        }
        if sizes.iter().chain(&shape.strides).any(|number| *number < 1) {
            let reason = format!("{sizes:?} with strides {:?} is not a valid tensor shape", shape.strides());
            return Err(bad_param(reason));
        }
        Ok(shape)
    }

    pub(super) fn sizes(&self) -> &[c_int] {
        &self.sizes[..self.rank]
    }

    fn strides(&self) -> &[c_int] {
        &self.strides[..self.rank]
    }

    /// Returns the strides of a packed tensor; `None` if they overflow.
    fn packed(&self) -> Option<[c_int; MAX_RANK]> {
        let mut strides: [c_int; MAX_RANK] = [1; MAX_RANK];
        for axis in (1..self.rank).rev() {
            strides[axis - 1] = strides[axis].checked_mul(self.sizes[axis])?;
        }
        Some(strides)
    }

    /// Returns true if the tensor has no gaps. The stride of a dimension of size 1 does not matter.
    fn is_packed(&self) -> bool {
        self.packed().is_some_and(|packed| {
            (0..self.rank).all(|axis| self.sizes[axis] == 1 || self.strides[axis] == packed[axis])
        })
    }
}

/// The structure behind `miopenTensorDescriptor_t`.
#[derive(Default)]
pub(super) struct Tensor {
    /// `None` until the descriptor is set.
    shape: Option<Shape>,
    as_tensor: OnceLock<Cached>,
    as_filter: OnceLock<Cached>,
}

impl Tensor {
    /// # Safety
    /// The descriptor is null, or valid and neither destroyed nor set while the result is used.
    pub(super) unsafe fn at<'a>(descriptor: miopenTensorDescriptor_t) -> Result<&'a Self, miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_ref() }.ok_or_else(|| bad_param("a tensor descriptor is null"))
    }

    pub(super) fn shape(&self) -> Result<&Shape, miopenStatus_t> {
        self.shape.as_ref().ok_or_else(|| bad_param("a tensor descriptor was never set"))
    }

    /// Returns cuDNN's descriptor of the tensor.
    pub(super) fn as_tensor(&self) -> Result<Object, miopenStatus_t> {
        get_or_create(&self.as_tensor, |cudnn| {
            let shape = self.shape()?;
            let (sizes, strides) = (shape.sizes().as_ptr(), shape.strides().as_ptr());
            // SAFETY: both lists have `rank` numbers.
            Cached::of("Tensor", cudnn.create_tensor, cudnn.destroy_tensor, |object| unsafe {
                (cudnn.set_tensor)(object, shape.data_type, shape.rank as c_int, sizes, strides)
            })
        })
    }

    /// Returns cuDNN's descriptor of the tensor as weights.
    pub(super) fn as_filter(&self) -> Result<Object, miopenStatus_t> {
        get_or_create(&self.as_filter, |cudnn| {
            let shape = self.shape()?;
            if !shape.is_packed() {
                return Err(unsupported("the NVIDIA driver supports no weights with gaps between elements"));
            }
            let sizes = shape.sizes().as_ptr();
            // SAFETY: the list has `rank` numbers.
            Cached::of("Filter", cudnn.create_filter, cudnn.destroy_filter, |object| unsafe {
                (cudnn.set_filter)(object, shape.data_type, CHANNELS_FIRST, shape.rank as c_int, sizes)
            })
        })
    }

    /// # Safety
    /// The conditions of [`Tensor::at`].
    unsafe fn set(descriptor: miopenTensorDescriptor_t, shape: Shape) -> Result<(), miopenStatus_t> {
        // SAFETY: the caller's descriptor, which is not used elsewhere at the same time.
        let tensor = unsafe { descriptor.cast::<Self>().as_mut() };
        let tensor = tensor.ok_or_else(|| bad_param("a tensor descriptor is null"))?;
        *tensor = Self { shape: Some(shape), ..Self::default() };
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn miopenCreateTensorDescriptor(
    tensorDesc: *mut miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_descriptor(tensorDesc, Tensor::default()) }
}

pub(crate) unsafe extern "C" fn miopenDestroyTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    unsafe { destroy::<Tensor, _>(tensorDesc) }
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn miopenSet4dTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t, dataType: miopenDataType_t, n: c_int, c: c_int, h: c_int, w: c_int,
) -> miopenStatus_t {
    let shape = data_type(dataType).and_then(|data_type| Shape::of(data_type, &[n, c, h, w], None));
    // SAFETY: the caller's descriptor.
    to_status(shape.and_then(|shape| unsafe { Tensor::set(tensorDesc, shape) }))
}

/// Sets the descriptor. Without strides the tensor is packed.
pub(crate) unsafe extern "C" fn miopenSetTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    nbDims: c_int,
    dimsA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    let Some(rank) = usize::try_from(nbDims).ok().filter(|rank| (1..=MAX_RANK).contains(rank)) else {
        return bad_param(format!("the NVIDIA driver does not support tensors of {nbDims} dimensions"));
    };
    // SAFETY: the caller's lists.
    let (sizes, strides) = unsafe { (list(dimsA, rank), list(stridesA, rank)) };
    let Some(sizes) = sizes else {
        return bad_param("the list of sizes is null");
    };
    let shape = data_type(dataType).and_then(|data_type| Shape::of(data_type, sizes, strides));
    // SAFETY: the caller's descriptor.
    to_status(shape.and_then(|shape| unsafe { Tensor::set(tensorDesc, shape) }))
}
