//! Convolution descriptors of MIOpen and cuDNN.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::c_int;
use std::sync::OnceLock;

use rocm_rs::miopen::ffi::{
    self as miopen, miopenConvolutionDescriptor_t, miopenConvolutionMode_t, miopenStatus_t,
    miopenTensorDescriptor_t,
};

use super::cudnn::{DataType, MATH_TYPES, Math, Object, bad_param, to_status, unsupported, write_to};
use super::descriptor::{Cached, destroy, get_or_create, list, write_descriptor};
use super::tensor::{DOUBLE, FLOAT, MAX_RANK, Shape, Tensor};

/// `CUDNN_CROSS_CORRELATION`, which MIOpen calls a convolution.
const CROSS_CORRELATION: u32 = 1;

const NULL_CONVOLUTION: &str = "a convolution descriptor is null";

/// The structure behind `miopenConvolutionDescriptor_t`.
pub(super) struct Convolution {
    /// Number of spatial dimensions.
    rank: usize,
    pads: [c_int; 3],
    strides: [c_int; 3],
    dilations: [c_int; 3],
    groups: c_int,
    /// cuDNN's descriptors: one for each math type, then f64's.
    cached: [OnceLock<Cached>; MATH_TYPES as usize + 1],
}

impl Convolution {
    fn of(
        pads: &[c_int],
        strides: &[c_int],
        dilations: &[c_int],
        mode: miopenConvolutionMode_t,
    ) -> Result<Self, miopenStatus_t> {
        if mode == miopen::miopenConvolutionMode_t_miopenTranspose {
            let reason = "the NVIDIA driver has no transposed mode: use a backward data convolution instead";
            return Err(unsupported(reason));
        }
        let is_valid = mode <= miopen::miopenConvolutionMode_t_miopenDepthwise
            && pads.iter().all(|pad| *pad >= 0)
            && strides.iter().chain(dilations).all(|step| *step >= 1);
        if !is_valid {
            return Err(bad_param(format!(
                "invalid convolution: mode {mode}, pads {pads:?}, strides {strides:?}, dilations {dilations:?}"
            )));
        }
        let all = |numbers: &[c_int]| std::array::from_fn(|axis| numbers.get(axis).copied().unwrap_or(1));
        Ok(Self {
            rank: pads.len(),
            pads: all(pads),
            strides: all(strides),
            dilations: all(dilations),
            groups: 1,
            cached: Default::default(),
        })
    }

    /// # Safety
    /// The conditions of [`Tensor::at`].
    pub(super) unsafe fn at<'a>(
        descriptor: miopenConvolutionDescriptor_t,
    ) -> Result<&'a Self, miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_ref() }.ok_or_else(|| bad_param(NULL_CONVOLUTION))
    }

    /// # Safety
    /// The descriptor is null, or valid and not used elsewhere at the same time.
    unsafe fn change(
        descriptor: miopenConvolutionDescriptor_t,
        change: impl FnOnce(&mut Self),
    ) -> Result<(), miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_mut() }.map(change).ok_or_else(|| bad_param(NULL_CONVOLUTION))
    }

    /// Returns the sizes of the output, of which the first `x.sizes().len()` are used.
    pub(super) fn result(&self, x: &Shape, weights: &Shape) -> Result<[c_int; MAX_RANK], miopenStatus_t> {
        let (x, w) = (x.sizes(), weights.sizes());
        let wrong = || {
            let Self { rank, groups, pads, .. } = self;
            bad_param(format!(
                "a {rank}-dimensional convolution with {groups} groups and pads {:?} does not take {x:?} by {w:?}",
                &pads[..*rank]
            ))
        };
        let groups_fit = w[0] % self.groups == 0 && w[1].checked_mul(self.groups) == Some(x[1]);
        if x.len() != self.rank + 2 || w.len() != x.len() || !groups_fit {
            return Err(wrong());
        }
        let mut sizes = [1; MAX_RANK];
        (sizes[0], sizes[1]) = (x[0], w[0]);
        for axis in 0..self.rank {
            let [size, window, pad, stride, dilation] =
                [x[axis + 2], w[axis + 2], self.pads[axis], self.strides[axis], self.dilations[axis]]
                    .map(i64::from);
            let span = size + 2 * pad - dilation * (window - 1) - 1;
            if span < 0 {
                return Err(wrong());
            }
            sizes[axis + 2] = c_int::try_from(span / stride + 1).map_err(|_| wrong())?;
        }
        Ok(sizes)
    }

    /// Returns cuDNN's descriptor for tensors of a data type and a math type.
    pub(super) fn object(&self, data_type: DataType, math: Math) -> Result<Object, miopenStatus_t> {
        let (index, compute) = if data_type == DOUBLE { (MATH_TYPES, DOUBLE) } else { (math, FLOAT) };
        get_or_create(&self.cached[index as usize], |cudnn| {
            let [pads, strides, dilations] =
                [&self.pads, &self.strides, &self.dilations].map(|list| list.as_ptr());
            let rank = self.rank as c_int;
            // SAFETY: the lists have three numbers, and at most three are read.
            Cached::of("Convolution", cudnn.create_convolution, cudnn.destroy_convolution, |object| unsafe {
                let set = cudnn.set_convolution;
                match set(object, rank, pads, strides, dilations, CROSS_CORRELATION, compute) {
                    0 => {}
                    status => return status,
                }
                match (cudnn.set_groups)(object, self.groups) {
                    0 => (cudnn.set_math)(object, math),
                    status => status,
                }
            })
        })
    }
}

/// Creates a descriptor of a two-dimensional convolution without padding.
pub(crate) unsafe extern "C" fn miopenCreateConvolutionDescriptor(
    convDesc: *mut miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    match Convolution::of(&[0, 0], &[1, 1], &[1, 1], 0) {
        // SAFETY: the caller guarantees a valid pointer.
        Ok(convolution) => unsafe { write_descriptor(convDesc, convolution) },
        Err(status) => status,
    }
}

pub(crate) unsafe extern "C" fn miopenDestroyConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    unsafe { destroy::<Convolution, _>(convDesc) }
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn miopenInitConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t, c_mode: miopenConvolutionMode_t, pad_h: c_int, pad_w: c_int,
    stride_h: c_int, stride_w: c_int, dilation_h: c_int, dilation_w: c_int,
) -> miopenStatus_t {
    let (pads, strides, dilations) = ([pad_h, pad_w], [stride_h, stride_w], [dilation_h, dilation_w]);
    // SAFETY: the caller's descriptor, and lists of two numbers.
    unsafe {
        miopenInitConvolutionNdDescriptor(
            convDesc,
            2,
            pads.as_ptr(),
            strides.as_ptr(),
            dilations.as_ptr(),
            c_mode,
        )
    }
}

/// Sets the descriptor and resets the group count to 1.
#[rustfmt::skip]
pub(crate) unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    convDesc: miopenConvolutionDescriptor_t, spatialDim: c_int, padA: *const c_int, strideA: *const c_int,
    dilationA: *const c_int, c_mode: miopenConvolutionMode_t,
) -> miopenStatus_t {
    let rank = match spatialDim {
        2 | 3 => spatialDim as usize,
        _ => return bad_param(format!("convolutions have 2 or 3 spatial dimensions, not {spatialDim}")),
    };
    // SAFETY: the caller's lists.
    let lists = unsafe { (list(padA, rank), list(strideA, rank), list(dilationA, rank)) };
    let (Some(pads), Some(strides), Some(dilations)) = lists else {
        return bad_param("a list of pads, strides or dilations is null");
    };
    to_status(Convolution::of(pads, strides, dilations, c_mode).and_then(|set| {
        // SAFETY: the caller's descriptor, which is not used elsewhere at the same time.
        unsafe { Convolution::change(convDesc, |convolution| *convolution = set) }
    }))
}

pub(crate) unsafe extern "C" fn miopenSetConvolutionGroupCount(
    convDesc: miopenConvolutionDescriptor_t,
    groupCount: c_int,
) -> miopenStatus_t {
    if groupCount < 1 {
        return bad_param(format!("group count {groupCount} is less than 1"));
    }
    // SAFETY: the caller's descriptor, which is not used elsewhere at the same time.
    to_status(unsafe {
        Convolution::change(convDesc, |convolution| {
            convolution.groups = groupCount;
            convolution.cached = Default::default();
        })
    })
}

/// Writes as many sizes as the input has dimensions.
pub(crate) unsafe extern "C" fn miopenGetConvolutionNdForwardOutputDim(
    convDesc: miopenConvolutionDescriptor_t,
    inputTensorDesc: miopenTensorDescriptor_t,
    filterDesc: miopenTensorDescriptor_t,
    nDim: *mut c_int,
    outputTensorDimA: *mut c_int,
) -> miopenStatus_t {
    let found = || {
        // SAFETY: the caller's descriptors.
        let (convolution, x, weights) =
            unsafe { (Convolution::at(convDesc)?, Tensor::at(inputTensorDesc)?, Tensor::at(filterDesc)?) };
        let (x, weights) = (x.shape()?, weights.shape()?);
        let sizes = convolution.result(x, weights)?;
        if outputTensorDimA.is_null() {
            return Err(bad_param("the list of sizes is null"));
        }
        let rank = x.sizes().len();
        // SAFETY: the caller's pointers.
        unsafe {
            write_to(nDim, rank as c_int)?;
            outputTensorDimA.copy_from_nonoverlapping(sizes.as_ptr(), rank);
        }
        Ok(())
    };
    to_status(found())
}
