//! The C functions of handles and descriptors with MIOpen 3's prototypes.
use super::descriptor::{CONVOLUTIONS, Convolution, TENSORS, Tensor};
use super::handle;
use super::problem::fit;
use super::status::{Outcome, Status, StatusError, bad_parm, reject, status_name};
use crate::c_functions::{c_functions, not_null};
use crate::runtime::{self, Miopen, runtime};
use std::ffi::{c_char, c_int, c_void};

/// The version that `miopenGetVersion` returns.
const VERSION: [usize; 3] = [3, 4, 0];

/// Runs a function's body and converts a panic to `InternalError`. Fails if the library is configured as absent.
pub(super) fn answer(function: &str, body: impl FnOnce() -> Outcome) -> u32 {
    let outcome = runtime::catch_panic(|| {
        if runtime().is_ok_and(|runtime| runtime.options.miopen == Miopen::Absent) {
            return reject(Status::NotInitialized, "MIOpen is absent (configured with miopen=absent)");
        }
        runtime::called(function)
            .map_err(|error| StatusError { status: Status::UnknownError, reason: error.detail })?;
        body()
    });
    match outcome.unwrap_or_else(|panic| reject(Status::InternalError, panic)) {
        Ok(()) => Status::Success as u32,
        Err(StatusError { status, reason }) => {
            runtime::note_detail(format!("{} ({}): {function}: {reason}", name(status), status as u32));
            status as u32
        }
    }
}

fn name(status: Status) -> std::borrow::Cow<'static, str> {
    status_name(status as u32).to_string_lossy()
}

/// Returns the caller's array of numbers.
///
/// # Safety
/// `values` must be null or valid for reads of `len` numbers.
unsafe fn take<'a>(values: *const c_int, len: usize) -> Outcome<&'a [i32]> {
    if values.is_null() {
        return bad_parm("a null pointer for numbers");
    }
    // SAFETY: the caller guarantees `len` numbers.
    Ok(unsafe { std::slice::from_raw_parts(values, len) })
}

c_functions! {
    /// Returns the version. Null pointers are skipped.
    fn miopenGetVersion(major: *mut usize, minor: *mut usize, patch: *mut usize) {
        for (place, part) in [major, minor, patch].into_iter().zip(VERSION) {
            if !place.is_null() {
                // SAFETY: the caller's pointer.
                unsafe { place.write(part) };
            }
        }
        Ok(())
    }
}

/// Returns the name of a status.
pub unsafe extern "C" fn miopenGetErrorString(error: u32) -> *const c_char {
    status_name(error).as_ptr()
}

c_functions! {
    /// Creates a handle on the current device, with its null stream.
    fn miopenCreate(handle: *mut *mut c_void) -> handle {
        not_null(handle)?;
        handle::create(0)?
    }

    /// Creates a handle on the current device, with one of its streams.
    fn miopenCreateWithStream(handle: *mut *mut c_void, stream: *mut c_void) -> handle {
        not_null(handle)?;
        handle::create(stream.addr())?
    }

    /// Destroys a handle.
    fn miopenDestroy(handle: *mut c_void) {
        handle::destroy(handle)
    }

    /// Sets the stream for later work. It must belong to the handle's device.
    fn miopenSetStream(handle: *mut c_void, streamID: *mut c_void) {
        handle::get(handle)?.set_stream(streamID.addr())
    }

    /// Returns the handle's stream.
    fn miopenGetStream(handle: *mut c_void, streamID: *mut *mut c_void) -> streamID {
        std::ptr::without_provenance_mut(handle::get(handle)?.stream_handle())
    }

    /// Creates an empty tensor descriptor.
    fn miopenCreateTensorDescriptor(tensorDesc: *mut *mut c_void) -> tensorDesc {
        not_null(tensorDesc)?;
        TENSORS.create()
    }

    /// Sets a descriptor to a packed tensor of four dimensions.
    fn miopenSet4dTensorDescriptor(
        tensorDesc: *mut c_void,
        dataType: u32,
        n: c_int,
        c: c_int,
        h: c_int,
        w: c_int,
    ) {
        TENSORS.set(tensorDesc, Tensor::new(dataType, &[n, c, h, w], None)?)
    }

    /// Sets a descriptor to a tensor of two to five dimensions. Without strides it is packed.
    fn miopenSetTensorDescriptor(
        tensorDesc: *mut c_void,
        dataType: u32,
        nbDims: c_int,
        dimsA: *const c_int,
        stridesA: *const c_int,
    ) {
        let Some(rank) = usize::try_from(nbDims).ok().filter(|rank| (2..=5).contains(rank)) else {
            return bad_parm(format!("{nbDims} dimensions; a tensor here has 2 to 5"));
        };
        // SAFETY: the caller guarantees one number per dimension.
        let (dims, strides) = unsafe {
            let strides = (!stridesA.is_null()).then(|| take(stridesA, rank));
            (take(dimsA, rank)?, strides.transpose()?)
        };
        TENSORS.set(tensorDesc, Tensor::new(dataType, dims, strides)?)
    }

    /// Destroys a tensor descriptor.
    fn miopenDestroyTensorDescriptor(tensorDesc: *mut c_void) {
        TENSORS.destroy(tensorDesc)
    }

    /// Creates an empty convolution descriptor.
    fn miopenCreateConvolutionDescriptor(convDesc: *mut *mut c_void) -> convDesc {
        not_null(convDesc)?;
        CONVOLUTIONS.create()
    }

    /// Sets a descriptor to a two-dimensional convolution with one group.
    fn miopenInitConvolutionDescriptor(
        convDesc: *mut c_void,
        c_mode: u32,
        pad_h: c_int,
        pad_w: c_int,
        stride_h: c_int,
        stride_w: c_int,
        dilation_h: c_int,
        dilation_w: c_int,
    ) {
        let (padding, stride) = ([pad_h, pad_w], [stride_h, stride_w]);
        let convolution = Convolution::new(c_mode, padding, stride, [dilation_h, dilation_w])?;
        CONVOLUTIONS.set(convDesc, convolution)
    }

    /// Like [`miopenInitConvolutionDescriptor`], for any number of dimensions. Only two dimensions are implemented.
    fn miopenInitConvolutionNdDescriptor(
        convDesc: *mut c_void,
        spatialDim: c_int,
        padA: *const c_int,
        strideA: *const c_int,
        dilationA: *const c_int,
        c_mode: u32,
    ) {
        if spatialDim != 2 {
            let why =
                format!("the software GPU supports convolutions of 2 spatial dimensions, not {spatialDim}");
            return reject(Status::NotImplemented, why);
        }
        // SAFETY: the caller guarantees two numbers each.
        let two = |values| unsafe { take(values, 2) }.map(|values| [values[0], values[1]]);
        let convolution = Convolution::new(c_mode, two(padA)?, two(strideA)?, two(dilationA)?)?;
        CONVOLUTIONS.set(convDesc, convolution)
    }

    /// Sets the number of groups, into which channels and filters are divided.
    fn miopenSetConvolutionGroupCount(convDesc: *mut c_void, groupCount: c_int) {
        match usize::try_from(groupCount) {
            Ok(groups) if groups > 0 => {
                CONVOLUTIONS.set(convDesc, Convolution { groups, ..CONVOLUTIONS.get(convDesc)? })
            }
            _ => bad_parm(format!("{groupCount} groups")),
        }
    }

    /// Destroys a convolution descriptor.
    fn miopenDestroyConvolutionDescriptor(convDesc: *mut c_void) {
        CONVOLUTIONS.destroy(convDesc)
    }

    /// Returns the four dimensions of a convolution's output.
    fn miopenGetConvolutionNdForwardOutputDim(
        convDesc: *mut c_void,
        inputTensorDesc: *mut c_void,
        filterDesc: *mut c_void,
        nDim: *mut c_int,
        outputTensorDimA: *mut c_int,
    ) -> nDim {
        let (input, filter) = (TENSORS.get(inputTensorDesc)?, TENSORS.get(filterDesc)?);
        let (dims, _) = fit(&CONVOLUTIONS.get(convDesc)?, &input, &filter)?;
        if outputTensorDimA.is_null() {
            return bad_parm("a null pointer for dimensions");
        }
        for (index, dim) in dims.iter().enumerate() {
            let Ok(dim) = c_int::try_from(*dim) else {
                return bad_parm(format!("the output {dims:?} has a dimension that exceeds 32 bits"));
            };
            // SAFETY: the caller guarantees one number per dimension.
            unsafe { outputTensorDimA.add(index).write(dim) };
        }
        dims.len() as c_int
    }
}
