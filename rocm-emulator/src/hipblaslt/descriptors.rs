//! Handles and descriptors. They are numbers, so that an invalid one causes an error code instead of a crash.
use super::types::{EPILOGUE_DEFAULT, Result, Status, StatusError, operation, reject};
use crate::rocblas::types::Operation;
use crate::runtime::{ErrorCode, Handles, HipError};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

/// State of a handle.
pub struct Context {
    /// The device that was current when the handle was created.
    pub device: usize,
}

/// `hipblasLtMatrixLayout_t`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// `hipDataType`; validated when it is used.
    pub kind: u32,
    pub rows: u64,
    pub columns: u64,
    pub ld: i64,
    pub batch: i32,
    /// Elements from one matrix of the batch to the next.
    pub stride: i64,
    /// `hipblasLtOrder_t`: 0 is column-major.
    pub order: i32,
}

/// `hipblasLtMatmulDesc_t`.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// `hipblasComputeType_t`.
    pub compute: u32,
    /// `hipDataType` of alpha and beta.
    pub scale: u32,
    pub op_a: Operation,
    pub op_b: Operation,
    /// `hipblasLtEpilogue_t`.
    pub epilogue: u32,
    /// A device address.
    pub bias: usize,
    /// `hipDataType` of the bias; `None` means D's.
    pub bias_kind: Option<u32>,
}

/// `hipblasLtMatmulPreference_t`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preference {
    pub max_workspace_bytes: u64,
}

/// Table of the live objects of one kind.
pub struct Table<T>(LazyLock<Handles<T>>);

/// Defines tables, whose kinds differ from those of HIP's and rocBLAS' handles.
macro_rules! tables {
    ($($table:ident: $type:ty, $kind:literal, $what:literal;)*) => {$(
        pub static $table: Table<$type> =
            Table(LazyLock::new(|| Handles::new($kind, $what, ErrorCode::InvalidHandle)));
    )*};
}
tables! {
    CONTEXTS: Context, 0x30, "a live hipblasLtHandle_t";
    LAYOUTS: Mutex<Layout>, 0x31, "a live hipblasLtMatrixLayout_t";
    MATMULS: Mutex<Matmul>, 0x32, "a live hipblasLtMatmulDesc_t";
    PREFERENCES: Mutex<Preference>, 0x33, "a live hipblasLtMatmulPreference_t";
}

impl<T> Table<T> {
    pub fn insert(&self, object: T) -> *mut c_void {
        self.0.insert(Arc::new(object))
    }

    /// Returns a live object; fails with the status `wrong` for any other handle.
    pub fn get_or(&self, handle: *mut c_void, wrong: Status) -> Result<Arc<T>> {
        self.0.get(handle).map_err(|HipError { detail: reason, .. }| StatusError { status: wrong, reason })
    }

    pub fn get(&self, handle: *mut c_void) -> Result<Arc<T>> {
        self.get_or(handle, Status::InvalidValue)
    }

    pub fn remove(&self, handle: *mut c_void, wrong: Status) -> Result<()> {
        self.get_or(handle, wrong).map(|_| drop(self.0.remove(handle)))
    }
}

impl<T: Copy> Table<Mutex<T>> {
    /// Returns the current contents of a descriptor.
    pub fn read(&self, handle: *mut c_void) -> Result<T> {
        Ok(*self.get(handle)?.lock())
    }
}

/// The value of an attribute as raw bytes.
pub struct Value {
    pub from: *const c_void,
    pub bytes: usize,
}

impl Value {
    /// Reads the value, which must have the size of its type.
    ///
    /// # Safety
    /// `from` must be null or readable for `bytes` bytes.
    unsafe fn read<T: Copy>(&self) -> Result<T> {
        if self.from.is_null() || self.bytes != size_of::<T>() {
            let reason = format!("{} bytes at {:?} instead of {}", self.bytes, self.from, size_of::<T>());
            return reject(Status::InvalidValue, reason);
        }
        // SAFETY: the caller guarantees this many bytes.
        Ok(unsafe { self.from.cast::<T>().read_unaligned() })
    }
}

fn unknown<T>(list: &str, attribute: u32) -> Result<T> {
    reject(Status::NotSupported, format!("the software GPU does not support attribute {attribute} of {list}"))
}

impl Layout {
    /// Sets a `hipblasLtMatrixLayoutAttribute_t`.
    ///
    /// # Safety
    /// The conditions of [`Value::read`].
    pub unsafe fn set(&mut self, attribute: u32, value: &Value) -> Result<()> {
        // SAFETY: the caller guarantees it for every arm.
        unsafe {
            match attribute {
                0 => self.batch = value.read()?,
                1 => self.stride = value.read()?,
                2 => self.kind = value.read()?,
                3 => self.order = value.read()?,
                4 => self.rows = value.read()?,
                5 => self.columns = value.read()?,
                6 => self.ld = value.read()?,
                _ => return unknown("hipblasLtMatrixLayoutAttribute_t", attribute),
            }
        }
        Ok(())
    }
}

impl Matmul {
    pub fn new(compute: u32, scale: u32) -> Self {
        let op = Operation::None;
        Self { compute, scale, op_a: op, op_b: op, epilogue: EPILOGUE_DEFAULT, bias: 0, bias_kind: None }
    }

    /// Sets a `hipblasLtMatmulDescAttributes_t`.
    ///
    /// # Safety
    /// The conditions of [`Value::read`].
    pub unsafe fn set(&mut self, attribute: u32, value: &Value) -> Result<()> {
        // SAFETY: the caller guarantees it for every arm.
        unsafe {
            match attribute {
                0 => self.op_a = operation(value.read()?)?,
                1 => self.op_b = operation(value.read()?)?,
                2 => self.epilogue = value.read()?,
                3 => self.bias = value.read::<*const c_void>()?.expose_provenance(),
                4 => self.bias_kind = Some(value.read()?),
                _ => return unknown("hipblasLtMatmulDescAttributes_t", attribute),
            }
        }
        Ok(())
    }
}

impl Preference {
    /// Sets a `hipblasLtMatmulPreferenceAttributes_t`; the search mode has no effect here.
    ///
    /// # Safety
    /// The conditions of [`Value::read`].
    pub unsafe fn set(&mut self, attribute: u32, value: &Value) -> Result<()> {
        // SAFETY: the caller guarantees it for every arm.
        unsafe {
            match attribute {
                0 => drop(value.read::<u32>()?),
                1 => self.max_workspace_bytes = value.read()?,
                _ => return unknown("hipblasLtMatmulPreferenceAttributes_t", attribute),
            }
        }
        Ok(())
    }
}
