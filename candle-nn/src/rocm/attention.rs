//! Scaled dot product attention: the kernels of `candle-kernels/attention.cu`.
use super::output;
use candle::backend::{BackendDevice, BackendStorage};
use candle::rocm::hip_kernels::contract::{
    self, AttentionColumns, AttentionKind, KernelFamily, ATTENTION_GROUPS as GROUPS,
};
use candle::rocm::{element, DevicePtr, LaunchConfig, RocmStorage, Strided};
use candle::{bail, DType, Error, Layout, Result, Shape, Storage, Tensor};

const OP: &str = "sdpa";

/// Value columns that a workgroup can make; a wider value takes several workgroups.
const COLUMNS: [(usize, AttentionColumns); 4] = [
    (64, AttentionColumns::C64),
    (128, AttentionColumns::C128),
    (256, AttentionColumns::C256),
    (512, AttentionColumns::C512),
];

/// The widest head whose queries fit the LDS of a workgroup (64 KiB).
const MAX_WIDTH: usize = 64 * 1024 / size_of::<f32>() / GROUPS;

/// softmax(q kᵀ scale + mask) v. With a `softcap` c other than 1, c tanh(q kᵀ scale / c) takes the place of q
/// kᵀ scale.
pub struct Attention<'a> {
    pub scale: f32,
    pub softcap: f32,
    /// Summands of the scores, in the dtype of q; its shape is broadcast to (batch, heads, queries, keys).
    pub mask: Option<&'a Tensor>,
    /// The last query sees every key, each query before it one key less.
    pub causal: bool,
}

type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl Attention<'_> {
    /// q is (batch, heads, queries, width), k (batch, key heads, keys, width) and v (batch, key heads, keys,
    /// value width), of any strides; `heads` is a multiple of `key heads`. The result is (batch, heads,
    /// queries, value width). For f16, bf16 and f32, computed in f32; no head may be wider than 2048. A query
    /// without a single key to look at gives zeros.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are others than these.
    pub fn forward(&self, q: Operand, k: Operand, v: Operand) -> Result<(RocmStorage, Shape)> {
        let device = q.0.device();
        let dtype = q.0.dtype();
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            return Err(Error::UnsupportedDTypeForOp(dtype, OP).bt());
        }
        for (operand, _) in [k, v] {
            same_dtype(dtype, operand.dtype())?;
        }
        let (batch, heads, queries, width) = q.1.shape().dims4()?;
        let (_, key_heads, keys, _) = k.1.shape().dims4()?;
        let (_, _, _, value_width) = v.1.shape().dims4()?;
        expect(q.1, k.1, &[batch, key_heads, keys, width])?;
        expect(k.1, v.1, &[batch, key_heads, keys, value_width])?;
        if key_heads == 0 || heads % key_heads != 0 {
            bail!("{OP}: {heads} query heads are no multiple of {key_heads} key heads");
        }
        if width > MAX_WIDTH {
            bail!("{OP}: heads of width {width}, at most {MAX_WIDTH} are possible on ROCm");
        }
        let shape = Shape::from((batch, heads, queries, value_width));
        // SAFETY: every element is written by the kernel.
        let dst = unsafe { RocmStorage::alloc(device, dtype, shape.elem_count(), OP)? };
        if shape.elem_count() == 0 {
            return Ok((dst, shape));
        }
        q.0.order_after(k.0)?;
        q.0.order_after(v.0)?;
        let mask = self.mask.map(|mask| mask.broadcast_as((batch, heads, queries, keys))).transpose()?;
        let (mask, mask_strides) = match &mask {
            Some(mask) => {
                same_dtype(dtype, mask.dtype())?;
                let (storage, layout) = mask.storage_and_layout();
                let storage = match &*storage {
                    Storage::Rocm(storage) if storage.device().ordinal() == device.ordinal() => storage,
                    _ => {
                        let (lhs, rhs) = (device.location(), mask.device().location());
                        return Err(Error::DeviceMismatchBinaryOp { lhs, rhs, op: OP }.bt());
                    }
                };
                q.0.order_after(storage)?;
                (storage.ptr(layout, OP)?, layout.stride().to_vec())
            }
            None => (DevicePtr::NULL, vec![0; 4]),
        };

        let sizes = [heads, key_heads, queries, keys, width, value_width];
        let info = Strided::verbatim(OP, &[&sizes, q.1.stride(), k.1.stride(), v.1.stride(), &mask_strides])?;
        // Few queries share keys and values anyhow: then all groups of a workgroup take parts of one query's
        // keys.
        let (kind, rows) =
            if queries < GROUPS { (AttentionKind::Row, 1) } else { (AttentionKind::Tile, GROUPS) };
        let widest = COLUMNS[COLUMNS.len() - 1];
        let (columns, wide) = COLUMNS.into_iter().find(|(c, _)| value_width <= *c).unwrap_or(widest);
        let pieces = value_width.div_ceil(columns);
        let threads = contract::Attention::BLOCK;
        let workgroups = batch * key_heads * (heads / key_heads * queries).div_ceil(rows);
        // HIP counts the threads of all pieces together.
        LaunchConfig::for_rows(OP, workgroups.saturating_mul(pieces), threads)?;
        let mut config = LaunchConfig::for_rows(OP, workgroups, threads)?;
        config.grid.1 = pieces as u32;
        config.lds_bytes = (rows * width * size_of::<f32>()) as u32;

        let kernel = element(dtype).and_then(|element| contract::Attention::kernel(kind, wide, element));
        let kernel = kernel.ok_or_else(|| Error::UnsupportedDTypeForOp(dtype, OP).bt())?;
        let arguments = contract::Attention {
            q: q.0.ptr(q.1, OP)?,
            k: k.0.ptr(k.1, OP)?,
            v: v.0.ptr(v.1, OP)?,
            mask,
            out: output(&dst)?,
            info: &info,
            scale: self.scale,
            softcap: self.softcap,
            causal: u32::from(self.causal),
        };
        // SAFETY: all layouts were checked against their buffers and each other.
        unsafe { device.launch(kernel, config, &arguments)? };
        Ok((dst, shape))
    }
}

fn same_dtype(lhs: DType, rhs: DType) -> Result<()> {
    if lhs != rhs {
        return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
    }
    Ok(())
}

fn expect(lhs: &Layout, rhs: &Layout, dims: &[usize]) -> Result<()> {
    if rhs.dims() != dims {
        let (lhs, rhs) = (lhs.shape().clone(), rhs.shape().clone());
        return Err(Error::ShapeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
    }
    Ok(())
}
