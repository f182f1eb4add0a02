//! Gradients of attention. The weights are recomputed from the statistics of the forward pass, and one workgroup sums each
//! result in a fixed order, so that gradients are deterministic.
use super::attention::{dense_ptr, Attention};
use super::attention_rows::{aligned_rows, invalid, AttentionOperand};
use super::found;
use crate::backend::{BackendDevice, BackendStorage};
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::{element, RocmStorage};
use crate::rocm_backend::Strided;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::contract::{
    GradientKeys, GradientKeysWidth, GradientMeans, GradientQueries, GradientQueriesWidth, ATTENTION_ROWS,
    BLOCK,
};

/// Head widths that have kernels, 256 only in f32 and 512 only in 16-bit dtypes; other widths use the next larger one.
const WIDTHS: [(usize, GradientQueriesWidth, GradientKeysWidth); 4] = [
    (64, GradientQueriesWidth::W64, GradientKeysWidth::W64),
    (128, GradientQueriesWidth::W128, GradientKeysWidth::W128),
    (256, GradientQueriesWidth::W256, GradientKeysWidth::W256),
    (512, GradientQueriesWidth::W512, GradientKeysWidth::W512),
];
/// Number of lanes per row in the kernel gradient_means.
const LANES: usize = 32;

/// Result of [`Attention::backward`], in the requested layouts.
pub struct AttentionGradients {
    /// Gradient of the queries.
    pub q: RocmStorage,
    /// Gradient of the keys.
    pub k: RocmStorage,
    /// Gradient of the values.
    pub v: RocmStorage,
}

impl Attention<'_> {
    /// Computes the gradients of q, k and v from the operands, result and statistics of [`Attention::forward`] and the
    /// gradient `grad` of the result. `layouts` are the layouts of the gradients, which must start at 0 and have dense rows
    /// and no gaps. Rows that belong to no sequence are zero. Results are bitwise reproducible.
    ///
    /// # Errors
    /// If [`Attention::forward`] would fail; with masks, pages or ranges; for f32 heads wider than 256; for widths that are
    /// not a multiple of 16 bytes.
    pub fn backward(
        &self,
        op: &'static str,
        [q, k, v]: [AttentionOperand; 3],
        result: AttentionOperand,
        statistics: &RocmStorage,
        grad: AttentionOperand,
        layouts: [&Layout; 3],
    ) -> Result<AttentionGradients> {
        let (device, dtype) = (q.0.device(), q.0.dtype());
        let unsupported = [("masks", self.mask), ("pages", self.pages), ("ranges", self.ranges)];
        if let Some((name, _)) = unsupported.iter().find(|(_, operand)| operand.is_some()) {
            return Err(invalid(format!("{op}: no gradients with {name}")));
        }
        let sizes = self.sizes(op, q.1, k.1, v.1)?;
        self.check(op, q.0, k.0, v.0, &sizes)?;
        let outer = q.1.dims()[0];
        let shape = Shape::from((outer, sizes.heads, sizes.total_queries, sizes.value_width));
        let rows = outer * sizes.heads * sizes.total_queries;
        for (storage, layout) in [result, grad] {
            if layout.shape() != &shape || storage.dtype() != dtype {
                return Err(invalid(format!(
                    "{op}: the result must be {dtype:?} {shape:?}, not {:?} {layout:?}",
                    storage.dtype()
                )));
            }
            q.0.order_after(storage)?;
        }
        q.0.order_after(statistics)?;
        for (layout, operand) in layouts.iter().zip([q.1, k.1, v.1]) {
            if layout.shape() != operand.shape() || layout.start_offset() != 0 {
                return Err(invalid(format!("{op}: gradient must match {operand:?}, not {layout:?}")));
            }
        }
        let pack = hip_kernels::contract::PACK_BYTES / dtype.size_in_bytes();
        let wanted = sizes.width.max(sizes.value_width);
        let of = element(dtype);
        let kernels =
            WIDTHS.into_iter().filter(|(most, ..)| wanted <= *most).find_map(|(most, queries, keys)| {
                Some((
                    most,
                    of.and_then(|of| GradientQueries::kernel(queries, of))?,
                    of.and_then(|of| GradientKeys::kernel(keys, of))?,
                ))
            });
        let (Some((most, of_queries, of_keys)), true) =
            (kernels, sizes.width % pack == 0 && sizes.value_width % pack == 0)
        else {
            return Err(invalid(format!(
                "{op}: no gradients of {dtype:?} for heads of width {} and {}: multiples of {pack}, at most 512, or 256 in f32",
                sizes.width, sizes.value_width
            )));
        };
        let is_empty = rows * sizes.value_width * sizes.total_keys == 0;
        let alloc = |layout: &Layout| match is_empty || self.sequences.is_some() {
            // Rows that belong to no sequence have zero gradients.
            true => device.zeros_impl(layout.shape(), dtype),
            // SAFETY: every element is written by the kernels.
            false => unsafe { RocmStorage::alloc(device, dtype, layout.shape().elem_count(), op) },
        };
        let gradients =
            AttentionGradients { q: alloc(layouts[0])?, k: alloc(layouts[1])?, v: alloc(layouts[2])? };
        if is_empty {
            return Ok(gradients);
        }
        let [q, k, v, grad, result] = [
            aligned_rows(op, q)?,
            aligned_rows(op, k)?,
            aligned_rows(op, v)?,
            aligned_rows(op, grad)?,
            aligned_rows(op, result)?,
        ];
        // SAFETY: every element is written by the kernel.
        let means = unsafe { RocmStorage::alloc(device, DType::F32, rows, op)? };
        let info = Strided::verbatim(
            op,
            &[&[sizes.heads, sizes.total_queries, sizes.value_width, rows], &grad.strides, &result.strides],
        )?;
        let arguments =
            GradientMeans { grad: grad.at, result: result.at, means: means.slice.ptr(), info: &info };
        let kernel = found(of.and_then(GradientMeans::kernel), op, dtype)?;
        let config = LaunchConfig::for_rows(op, rows.div_ceil(BLOCK / LANES), BLOCK as u32)?;
        // SAFETY: both operands have `rows` rows, and `means` has an element for each.
        unsafe { device.launch(kernel, config, &arguments)? };

        let mut copies = Vec::new();
        let mut dense = |operand| dense_ptr(op, operand, &mut copies);
        let starts = self.sequences.as_ref();
        let (query_starts, key_starts) =
            (dense(starts.map(|starts| starts.queries))?, dense(starts.map(|starts| starts.keys))?);
        let slopes = dense(self.slopes)?;
        let strides = layouts.map(|layout| layout.stride()[..3].to_vec());
        let info_of = |first: &[usize], second: &[usize]| {
            Strided::verbatim(
                op,
                &[
                    &sizes.words(),
                    &q.strides,
                    &k.strides,
                    &v.strides,
                    &grad.strides,
                    first,
                    second,
                    &[0],
                    &sizes.statistics_strides(),
                    &self.window_words(),
                    &[0, 0],
                ],
            )
        };
        // Number of columns per workgroup; must match `gradients.cu`.
        let wide = dtype.size_in_bytes() == 4;
        let of_queries_columns = if wide && most > 128 { 64 } else { most.min(128) };
        let of_keys_columns = if wide || !device.has_matrix_units() { 64 } else { most.min(128) };
        let config = |own: usize, columns: usize| {
            let blocks = own.div_ceil(ATTENTION_ROWS) * sizes.key_heads * sizes.batches;
            LaunchConfig::for_grid(op, (blocks, wanted.div_ceil(columns), 1), BLOCK as u32)
        };
        // The common arguments of both kernels, followed by those of one kernel.
        macro_rules! arguments {
            ($kernel:ident, $info:expr, $($out:ident: $made:expr),*) => {
                $kernel {
                    q: q.at,
                    k: k.at,
                    v: v.at,
                    grad: grad.at,
                    statistics: statistics.slice.ptr(),
                    means: means.slice.ptr(),
                    slopes,
                    query_starts,
                    key_starts,
                    info: $info,
                    scale: self.scale,
                    softcap: self.softcap.unwrap_or(0.0),
                    total_queries: sizes.total_queries as u32,
                    total_keys: sizes.total_keys as u32,
                    $($out: $made.slice.ptr(),)*
                }
            };
        }
        let info = info_of(&strides[0], &[0; 3])?;
        let arguments = arguments!(GradientQueries, &info, out: gradients.q);
        // SAFETY: the layouts were checked against their buffers and each other; the kernel checks lengths.
        unsafe { device.launch(of_queries, config(sizes.rows(), of_queries_columns)?, &arguments)? };
        let info = info_of(&strides[1], &strides[2])?;
        let arguments = arguments!(GradientKeys, &info, out_keys: gradients.k, out_values: gradients.v);
        // SAFETY: as above.
        unsafe { device.launch(of_keys, config(sizes.keys, of_keys_columns)?, &arguments)? };
        Ok(gradients)
    }
}
