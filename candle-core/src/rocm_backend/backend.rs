//! Implementations of Candle's backend traits, which delegate to the files in `ops` and `fusion`.
use super::device::RocmDevice;
use super::error::unsupported_dtype;
use super::fusion;
use super::ops::{conv, elementwise, indexing, matmul, pooling, reduce, strided};
use super::storage::{RocmStorage, RocmStorageSlice};
use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{CpuStorage, CpuStorageRef, DType, DeviceLocation, Layout, Result, Shape, WithDType};
use hip_kernels::contract::{PoolKind, UnaryWithParameterOp};

impl BackendDevice for RocmDevice {
    type Storage = RocmStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Self::open(ordinal)
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        self.reseed(seed);
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(self.seed())
    }

    fn location(&self) -> DeviceLocation {
        DeviceLocation::Rocm { gpu_id: self.ordinal() }
    }

    fn same_device(&self, rhs: &Self) -> bool {
        self.id() == rhs.id()
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<RocmStorage> {
        strided::zeros(self, dtype, shape.elem_count())
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<RocmStorage> {
        self.uniform(dtype, shape.elem_count(), lo, up)
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<RocmStorage> {
        self.normal(dtype, shape.elem_count(), mean, std)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<RocmStorage> {
        // SAFETY: passed on to the caller.
        unsafe { RocmStorage::alloc(self, dtype, shape.elem_count(), "alloc_uninit") }
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<RocmStorage> {
        let slice = RocmStorageSlice::upload(self, T::cpu_storage_ref(data))?;
        Ok(RocmStorage { slice, device: self.clone() })
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<RocmStorage> {
        let slice = RocmStorageSlice::upload(self, borrowed(storage))?;
        Ok(RocmStorage { slice, device: self.clone() })
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<RocmStorage> {
        self.storage_from_cpu_storage(&storage)
    }

    /// Waits for all work enqueued on the device, and returns an error if any of it failed.
    fn synchronize(&self) -> Result<()> {
        self.state().synchronize()
    }
}

fn borrowed(storage: &CpuStorage) -> CpuStorageRef<'_> {
    match storage {
        CpuStorage::U8(v) => CpuStorageRef::U8(v),
        CpuStorage::U32(v) => CpuStorageRef::U32(v),
        CpuStorage::I16(v) => CpuStorageRef::I16(v),
        CpuStorage::I32(v) => CpuStorageRef::I32(v),
        CpuStorage::I64(v) => CpuStorageRef::I64(v),
        CpuStorage::BF16(v) => CpuStorageRef::BF16(v),
        CpuStorage::F16(v) => CpuStorageRef::F16(v),
        CpuStorage::F32(v) => CpuStorageRef::F32(v),
        CpuStorage::F64(v) => CpuStorageRef::F64(v),
        CpuStorage::F8E4M3(v) => CpuStorageRef::F8E4M3(v),
        CpuStorage::F6E2M3(v) => CpuStorageRef::F6E2M3(v),
        CpuStorage::F6E3M2(v) => CpuStorageRef::F6E3M2(v),
        CpuStorage::F4(v) => CpuStorageRef::F4(v),
        CpuStorage::F8E8M0(v) => CpuStorageRef::F8E8M0(v),
    }
}

impl RocmDevice {
    /// Uploads the bytes of a packed dtype (F6E2M3, F6E3M2, F4, F8E8M0), in the format of files.
    ///
    /// # Errors
    /// If `dtype` is not packed, or the upload fails.
    pub fn storage_from_raw_bytes(&self, data: &[u8], dtype: DType) -> Result<RocmStorage> {
        let bytes = match dtype {
            DType::F6E2M3 => CpuStorageRef::F6E2M3(data),
            DType::F6E3M2 => CpuStorageRef::F6E3M2(data),
            DType::F4 => CpuStorageRef::F4(data),
            DType::F8E8M0 => CpuStorageRef::F8E8M0(data),
            dtype => return Err(unsupported_dtype("storage_from_raw_bytes", dtype)),
        };
        let slice = RocmStorageSlice::upload(self, bytes)?;
        Ok(RocmStorage { slice, device: self.clone() })
    }
}

impl BackendStorage for RocmStorage {
    type Device = RocmDevice;

    /// Copies the whole storage, including elements that the layout does not cover.
    fn try_clone(&self, _: &Layout) -> Result<Self> {
        strided::duplicate(self)
    }

    fn dtype(&self) -> DType {
        self.slice.dtype()
    }

    fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// Waits for the device's stream, copies the storage, and reports errors of work enqueued earlier.
    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        self.slice.download(self.device.state())
    }

    fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self> {
        elementwise::affine(self, layout, mul, add)
    }

    fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self> {
        elementwise::with_parameter(self, layout, UnaryWithParameterOp::Powf, "powf", exponent)
    }

    fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self> {
        elementwise::with_parameter(self, layout, UnaryWithParameterOp::Elu, "elu", alpha)
    }

    fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
        reduce::reduce(self, op, layout, dims)
    }

    fn cmp(&self, op: CmpOp, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self> {
        elementwise::compare(op, (self, lhs_l), (rhs, rhs_l))
    }

    fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self> {
        elementwise::cast(self, layout, dtype)
    }

    fn unary_impl<U: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {
        match fusion::unary::<U>(self, layout)? {
            Some(deferred) => Ok(deferred),
            None => elementwise::unary::<U>(self, layout),
        }
    }

    fn binary_impl<B: BinaryOpT>(&self, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self> {
        match fusion::binary::<B>((self, lhs_l), (rhs, rhs_l))? {
            Some(deferred) => Ok(deferred),
            None => elementwise::binary::<B>((self, lhs_l), (rhs, rhs_l)),
        }
    }

    fn where_cond(&self, l: &Layout, t: &Self, t_l: &Layout, f: &Self, f_l: &Layout) -> Result<Self> {
        elementwise::where_cond([(self, l), (t, t_l), (f, f_l)])
    }

    fn conv1d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv1D) -> Result<Self> {
        conv::conv1d((self, l), (kernel, kernel_l), params, 1)
    }

    fn conv_transpose1d(
        &self,
        l: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConvTranspose1D,
    ) -> Result<Self> {
        conv::conv_transpose1d((self, l), (kernel, kernel_l), params, 1)
    }

    fn conv2d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv2D) -> Result<Self> {
        conv::conv2d((self, l), (kernel, kernel_l), params, 1)
    }

    fn conv_transpose2d(
        &self,
        l: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConvTranspose2D,
    ) -> Result<Self> {
        conv::conv_transpose2d((self, l), (kernel, kernel_l), params)
    }

    fn avg_pool2d(&self, l: &Layout, k: (usize, usize), stride: (usize, usize)) -> Result<Self> {
        pooling::pool2d(self, l, PoolKind::Avg, k, stride)
    }

    fn max_pool2d(&self, l: &Layout, k: (usize, usize), stride: (usize, usize)) -> Result<Self> {
        pooling::pool2d(self, l, PoolKind::Max, k, stride)
    }

    fn upsample_nearest1d(&self, l: &Layout, size: usize) -> Result<Self> {
        pooling::upsample_nearest1d(self, l, size)
    }

    fn upsample_nearest2d(&self, l: &Layout, out_h: usize, out_w: usize) -> Result<Self> {
        pooling::upsample_nearest2d(self, l, out_h, out_w)
    }

    fn upsample_bilinear2d(
        &self,
        l: &Layout,
        out_h: usize,
        out_w: usize,
        align_corners: bool,
        scale_h: Option<f64>,
        scale_w: Option<f64>,
    ) -> Result<Self> {
        pooling::upsample_bilinear2d(self, l, (out_h, out_w), align_corners, scale_h, scale_w)
    }

    fn gather(&self, l: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self> {
        indexing::gather((self, l), (ids, ids_l), dim)
    }

    fn scatter_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        indexing::scatter((self, l), (ids, ids_l), (src, src_l), dim, false)
    }

    fn scatter_add_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        indexing::scatter((self, l), (ids, ids_l), (src, src_l), dim, true)
    }

    fn index_select(&self, ids: &Self, l: &Layout, ids_l: &Layout, dim: usize) -> Result<Self> {
        indexing::index_select((self, l), (ids, ids_l), dim)
    }

    fn index_add(
        &self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        indexing::index_add((self, l), (ids, ids_l), (src, src_l), dim)
    }

    fn matmul(
        &self,
        rhs: &Self,
        bmnk: (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        matmul::matmul((self, lhs_l), (rhs, rhs_l), bmnk)
    }

    fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, src_l: &Layout) -> Result<()> {
        strided::copy_strided(self, src_l, dst, dst_offset)
    }

    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        strided::copy2d(self, dst, d1, d2, src_stride1, dst_stride1, src_offset, dst_offset)
    }

    fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()> {
        strided::const_set(self, value, layout)
    }
}
