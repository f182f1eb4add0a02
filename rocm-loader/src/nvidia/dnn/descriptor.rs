//! MIOpen's descriptors of tensors and convolutions: structures of ours, checked when they are set. Each keeps cuDNN's
//! descriptors of it, which are made at the first use and given up when it is set again.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rocm_rs::miopen::ffi::{
    self as miopen, miopenConvolutionDescriptor_t, miopenConvolutionMode_t, miopenDataType_t, miopenStatus_t,
    miopenTensorDescriptor_t,
};

use super::{Cudnn, DataType, MATHS, Math, Object, Status, bad, failed, give, library, refused, told};

/// The batch, the channels and three dimensions of space.
const MAX_RANK: usize = 5;

/// `CUDNN_DATA_FLOAT`.
pub(super) const FLOAT: DataType = 0;
/// `CUDNN_DATA_DOUBLE`.
pub(super) const DOUBLE: DataType = 1;
/// `CUDNN_DATA_HALF`.
const HALF: DataType = 2;
/// `CUDNN_DATA_BFLOAT16`.
const BFLOAT16: DataType = 9;
/// `CUDNN_TENSOR_NCHW`, which stands for all dimensions of space.
const CHANNELS_FIRST: u32 = 0;
/// `CUDNN_CROSS_CORRELATION`: what MIOpen calls a convolution.
const CROSS_CORRELATION: u32 = 1;

const NULL_CONVOLUTION: &str = "a convolution descriptor is null";

fn data_type(data_type: miopenDataType_t) -> Result<DataType, miopenStatus_t> {
    Ok(match data_type {
        miopen::miopenDataType_t_miopenHalf => HALF,
        miopen::miopenDataType_t_miopenFloat => FLOAT,
        miopen::miopenDataType_t_miopenBFloat16 => BFLOAT16,
        miopen::miopenDataType_t_miopenDouble => DOUBLE,
        other => {
            return Err(unsupported(format!("the NVIDIA driver has no tensors of MIOpen's type {other}")));
        }
    })
}

#[cold]
pub(super) fn unsupported(reason: impl Into<String>) -> miopenStatus_t {
    refused(miopen::miopenStatus_t_miopenStatusUnsupportedOp, reason)
}

/// A descriptor of cuDNN's.
struct Built {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Built {
    /// Makes one and sets it. `kind` names it in cuDNN's functions.
    fn make(
        kind: &str,
        create: unsafe extern "C" fn(*mut Object) -> Status,
        destroy: unsafe extern "C" fn(Object) -> Status,
        set: impl FnOnce(Object) -> Status,
    ) -> Result<Self, miopenStatus_t> {
        let mut object = null_mut();
        // SAFETY: writes one address.
        let status = unsafe { create(&mut object) };
        if status != 0 {
            return Err(failed(library()?, &format!("cudnnCreate{kind}Descriptor"), status));
        }
        let built = Self { object, destroy };
        match set(object) {
            0 => Ok(built),
            status => Err(failed(library()?, &format!("cudnnSet{kind}NdDescriptor"), status)),
        }
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        // SAFETY: made with its own function, and given to nobody who outlives this.
        unsafe { (self.destroy)(self.object) };
    }
}

/// What a place keeps, which is made at the first call.
#[inline]
fn kept(
    place: &OnceLock<Built>,
    make: impl FnOnce(&'static Cudnn) -> Result<Built, miopenStatus_t>,
) -> Result<Object, miopenStatus_t> {
    if let Some(built) = place.get() {
        return Ok(built.object);
    }
    let built = make(library()?)?;
    // Of two threads' one is kept, the other dropped.
    Ok(place.get_or_init(|| built).object)
}

/// Sizes and strides of a tensor.
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
            let reason =
                format!("the NVIDIA driver has tensors of 4 and 5 dimensions, and {rank} are asked for");
            return Err(unsupported(reason));
        }
        let mut shape = Self { data_type, rank, sizes: [1; MAX_RANK], strides: [1; MAX_RANK] };
        shape.sizes[..rank].copy_from_slice(sizes);
        match strides {
            Some(strides) => shape.strides[..rank].copy_from_slice(strides),
            None => {
                shape.strides =
                    shape.packed().ok_or_else(|| bad(format!("{sizes:?} is no tensor's shape")))?
            }
        }
        if sizes.iter().chain(&shape.strides).any(|number| *number < 1) {
            let reason = format!("{sizes:?} with the strides {:?} is no tensor's shape", shape.strides());
            return Err(bad(reason));
        }
        Ok(shape)
    }

    pub(super) fn sizes(&self) -> &[c_int] {
        &self.sizes[..self.rank]
    }

    fn strides(&self) -> &[c_int] {
        &self.strides[..self.rank]
    }

    /// The strides without gaps; none if they do not fit.
    fn packed(&self) -> Option<[c_int; MAX_RANK]> {
        let mut strides: [c_int; MAX_RANK] = [1; MAX_RANK];
        for axis in (1..self.rank).rev() {
            strides[axis - 1] = strides[axis].checked_mul(self.sizes[axis])?;
        }
        Some(strides)
    }

    /// Whether there are no gaps. Where there is one element its stride does not matter.
    fn is_packed(&self) -> bool {
        self.packed().is_some_and(|packed| {
            (0..self.rank).all(|axis| self.sizes[axis] == 1 || self.strides[axis] == packed[axis])
        })
    }
}

/// What `miopenTensorDescriptor_t` points to.
#[derive(Default)]
pub(super) struct Tensor {
    /// None until it is set.
    shape: Option<Shape>,
    as_tensor: OnceLock<Built>,
    as_filter: OnceLock<Built>,
}

impl Tensor {
    /// # Safety
    /// Null, or made here and not destroyed or set while it is used.
    pub(super) unsafe fn at<'a>(descriptor: miopenTensorDescriptor_t) -> Result<&'a Self, miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_ref() }.ok_or_else(|| bad("a tensor descriptor is null"))
    }

    pub(super) fn shape(&self) -> Result<&Shape, miopenStatus_t> {
        self.shape.as_ref().ok_or_else(|| bad("a tensor descriptor was never set"))
    }

    /// cuDNN's descriptor of a tensor.
    pub(super) fn as_tensor(&self) -> Result<Object, miopenStatus_t> {
        kept(&self.as_tensor, |cudnn| {
            let shape = self.shape()?;
            let (sizes, strides) = (shape.sizes().as_ptr(), shape.strides().as_ptr());
            // SAFETY: both lists have as many numbers as are named.
            Built::make("Tensor", cudnn.create_tensor, cudnn.destroy_tensor, |object| unsafe {
                (cudnn.set_tensor)(object, shape.data_type, shape.rank as c_int, sizes, strides)
            })
        })
    }

    /// cuDNN's descriptor of weights.
    pub(super) fn as_filter(&self) -> Result<Object, miopenStatus_t> {
        kept(&self.as_filter, |cudnn| {
            let shape = self.shape()?;
            if !shape.is_packed() {
                return Err(unsupported("the NVIDIA driver has no convolutions whose weights have gaps"));
            }
            let sizes = shape.sizes().as_ptr();
            // SAFETY: the list has as many numbers as are named.
            Built::make("Filter", cudnn.create_filter, cudnn.destroy_filter, |object| unsafe {
                (cudnn.set_filter)(object, shape.data_type, CHANNELS_FIRST, shape.rank as c_int, sizes)
            })
        })
    }

    /// # Safety
    /// As [`Tensor::at`].
    unsafe fn set(descriptor: miopenTensorDescriptor_t, shape: Shape) -> Result<(), miopenStatus_t> {
        // SAFETY: the caller's descriptor, which nobody else uses now.
        let tensor = unsafe { descriptor.cast::<Self>().as_mut() };
        let tensor = tensor.ok_or_else(|| bad("a tensor descriptor is null"))?;
        *tensor = Self { shape: Some(shape), ..Self::default() };
        Ok(())
    }
}

/// What `miopenConvolutionDescriptor_t` points to.
pub(super) struct Convolution {
    /// The dimensions of space.
    rank: usize,
    pads: [c_int; 3],
    strides: [c_int; 3],
    dilations: [c_int; 3],
    groups: c_int,
    /// One for each kind of arithmetic, f64's last.
    built: [OnceLock<Built>; MATHS as usize + 1],
}

impl Convolution {
    fn of(
        pads: &[c_int],
        strides: &[c_int],
        dilations: &[c_int],
        mode: miopenConvolutionMode_t,
    ) -> Result<Self, miopenStatus_t> {
        if mode == miopen::miopenConvolutionMode_t_miopenTranspose {
            let reason =
                "the NVIDIA driver has no transposed mode: a backward convolution of the data is one";
            return Err(unsupported(reason));
        }
        let is_valid = mode <= miopen::miopenConvolutionMode_t_miopenDepthwise
            && pads.iter().all(|pad| *pad >= 0)
            && strides.iter().chain(dilations).all(|step| *step >= 1);
        if !is_valid {
            return Err(bad(format!(
                "mode {mode}, pads {pads:?}, strides {strides:?}, dilations {dilations:?} are no convolution"
            )));
        }
        let all = |numbers: &[c_int]| std::array::from_fn(|axis| numbers.get(axis).copied().unwrap_or(1));
        Ok(Self {
            rank: pads.len(),
            pads: all(pads),
            strides: all(strides),
            dilations: all(dilations),
            groups: 1,
            built: Default::default(),
        })
    }

    /// # Safety
    /// As [`Tensor::at`].
    pub(super) unsafe fn at<'a>(
        descriptor: miopenConvolutionDescriptor_t,
    ) -> Result<&'a Self, miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_ref() }.ok_or_else(|| bad(NULL_CONVOLUTION))
    }

    /// # Safety
    /// Null, or made here and used by nobody else.
    unsafe fn change(
        descriptor: miopenConvolutionDescriptor_t,
        change: impl FnOnce(&mut Self),
    ) -> Result<(), miopenStatus_t> {
        // SAFETY: the caller's descriptor.
        unsafe { descriptor.cast::<Self>().as_mut() }.map(change).ok_or_else(|| bad(NULL_CONVOLUTION))
    }

    /// The sizes of what comes out, the first `x.sizes().len()` of them.
    pub(super) fn result(&self, x: &Shape, weights: &Shape) -> Result<[c_int; MAX_RANK], miopenStatus_t> {
        let (x, w) = (x.sizes(), weights.sizes());
        let wrong = || {
            let Self { rank, groups, pads, .. } = self;
            bad(format!(
                "a convolution in {rank} dimensions with {groups} groups and the pads {:?} does not take {x:?} by {w:?}",
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
            let room = size + 2 * pad - dilation * (window - 1) - 1;
            if room < 0 {
                return Err(wrong());
            }
            sizes[axis + 2] = c_int::try_from(room / stride + 1).map_err(|_| wrong())?;
        }
        Ok(sizes)
    }

    /// cuDNN's descriptor of it for tensors of a type, computed by `math`.
    pub(super) fn object(&self, data_type: DataType, math: Math) -> Result<Object, miopenStatus_t> {
        let (place, compute) = if data_type == DOUBLE { (MATHS, DOUBLE) } else { (math, FLOAT) };
        kept(&self.built[place as usize], |cudnn| {
            let [pads, strides, dilations] =
                [&self.pads, &self.strides, &self.dilations].map(|list| list.as_ptr());
            let rank = self.rank as c_int;
            // SAFETY: the lists have three numbers, of which as many are read as there are dimensions.
            Built::make("Convolution", cudnn.create_convolution, cudnn.destroy_convolution, |object| unsafe {
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

/// Gives out a structure of ours as a descriptor of MIOpen's.
///
/// # Safety
/// `to` is null or a place for one.
unsafe fn give_out<T, D>(to: *mut *mut D, descriptor: impl FnOnce() -> T) -> miopenStatus_t {
    if to.is_null() {
        return bad("a pointer to write to is null");
    }
    // SAFETY: the caller's place.
    told(unsafe { give(to, Box::into_raw(Box::new(descriptor())).cast()) })
}

/// Takes it back. Null is nothing.
///
/// # Safety
/// Null, or given out as a `T` and not used any more.
unsafe fn take_back<T, D>(descriptor: *mut D) -> miopenStatus_t {
    if !descriptor.is_null() {
        // SAFETY: the caller's condition.
        drop(unsafe { Box::from_raw(descriptor.cast::<T>()) });
    }
    told(Ok(()))
}

/// A list of the caller's.
///
/// # Safety
/// Null, or `len` numbers.
unsafe fn list<'a>(numbers: *const c_int, len: usize) -> Option<&'a [c_int]> {
    // SAFETY: the caller's condition.
    (!numbers.is_null()).then(|| unsafe { std::slice::from_raw_parts(numbers, len) })
}

pub(crate) unsafe extern "C" fn miopenCreateTensorDescriptor(
    tensorDesc: *mut miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's place.
    unsafe { give_out(tensorDesc, Tensor::default) }
}

pub(crate) unsafe extern "C" fn miopenDestroyTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    unsafe { take_back::<Tensor, _>(tensorDesc) }
}

pub(crate) unsafe extern "C" fn miopenSet4dTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> miopenStatus_t {
    let shape = data_type(dataType).and_then(|data_type| Shape::of(data_type, &[n, c, h, w], None));
    // SAFETY: the caller's descriptor.
    told(shape.and_then(|shape| unsafe { Tensor::set(tensorDesc, shape) }))
}

/// Without strides there are no gaps.
pub(crate) unsafe extern "C" fn miopenSetTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    nbDims: c_int,
    dimsA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    let Some(rank) = usize::try_from(nbDims).ok().filter(|rank| (1..=MAX_RANK).contains(rank)) else {
        return bad(format!("the NVIDIA driver has no tensors of {nbDims} dimensions"));
    };
    // SAFETY: the caller's lists.
    let (sizes, strides) = unsafe { (list(dimsA, rank), list(stridesA, rank)) };
    let Some(sizes) = sizes else {
        return bad("the list of sizes is null");
    };
    let shape = data_type(dataType).and_then(|data_type| Shape::of(data_type, sizes, strides));
    // SAFETY: the caller's descriptor.
    told(shape.and_then(|shape| unsafe { Tensor::set(tensorDesc, shape) }))
}

/// Until it is set it is that of two dimensions without pads.
pub(crate) unsafe extern "C" fn miopenCreateConvolutionDescriptor(
    convDesc: *mut miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    match Convolution::of(&[0, 0], &[1, 1], &[1, 1], 0) {
        // SAFETY: the caller's place.
        Ok(convolution) => unsafe { give_out(convDesc, || convolution) },
        Err(status) => status,
    }
}

pub(crate) unsafe extern "C" fn miopenDestroyConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    unsafe { take_back::<Convolution, _>(convDesc) }
}

pub(crate) unsafe extern "C" fn miopenInitConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
    c_mode: miopenConvolutionMode_t,
    pad_h: c_int,
    pad_w: c_int,
    stride_h: c_int,
    stride_w: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
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

/// The groups are one again.
pub(crate) unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
    spatialDim: c_int,
    padA: *const c_int,
    strideA: *const c_int,
    dilationA: *const c_int,
    c_mode: miopenConvolutionMode_t,
) -> miopenStatus_t {
    let rank = match spatialDim {
        2 | 3 => spatialDim as usize,
        _ => return bad(format!("there are convolutions in 2 and 3 dimensions, not in {spatialDim}")),
    };
    // SAFETY: the caller's lists.
    let lists = unsafe { (list(padA, rank), list(strideA, rank), list(dilationA, rank)) };
    let (Some(pads), Some(strides), Some(dilations)) = lists else {
        return bad("a list of pads, strides or dilations is null");
    };
    let convolution = Convolution::of(pads, strides, dilations, c_mode);
    // SAFETY: the caller's descriptor, which nobody else uses now.
    told(
        convolution
            .and_then(|set| unsafe { Convolution::change(convDesc, |convolution| *convolution = set) }),
    )
}

pub(crate) unsafe extern "C" fn miopenSetConvolutionGroupCount(
    convDesc: miopenConvolutionDescriptor_t,
    groupCount: c_int,
) -> miopenStatus_t {
    if groupCount < 1 {
        return bad(format!("{groupCount} is no number of groups"));
    }
    // SAFETY: the caller's descriptor, which nobody else uses now.
    told(unsafe {
        Convolution::change(convDesc, |convolution| {
            convolution.groups = groupCount;
            convolution.built = Default::default();
        })
    })
}

/// # Safety
/// As of MIOpen's function: the caller's list has room for as many numbers as the input has dimensions.
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
            return Err(bad("the list of sizes is null"));
        }
        let rank = x.sizes().len();
        // SAFETY: the caller's places.
        unsafe {
            give(nDim, rank as c_int)?;
            outputTensorDimA.copy_from_nonoverlapping(sizes.as_ptr(), rank);
        }
        Ok(())
    };
    told(found())
}
