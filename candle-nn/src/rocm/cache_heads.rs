//! Rotary embeddings with the write of keys and values to a paged cache, in one launch.
use super::operand::Operand;
use super::{count, output};
use crate::encoded_cache::CacheScales;
use crate::fused::CacheHeads;
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{self, KernelOf, BLOCK, PACK_BYTES};
use candle::rocm::{element, DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, DType, Result, Storage, Tensor};

const OP: &str = "cache-heads";
/// Maximum number of threads that share a head.
const MAX_LANES: usize = 32;
/// HIP's limit for y of a grid; kernels stride over more rows.
const MAX_GRID: usize = 0xffff;

/// Kernel for caches of floats or bytes.
enum Kernel {
    Plain(KernelOf<contract::CacheHeads>),
    Encoded(KernelOf<contract::CacheHeadsEncoded>),
}

/// Computes [`CacheHeads`] in one launch. Returns `None` if separate operations must be used: on other devices, or for other
/// dtypes, odd widths or no rows. The caller has checked all shapes.
///
/// # Errors
/// If operands are on several devices, have other dtypes or are strided, or there is not enough memory for the result.
pub fn cache_heads(op: &CacheHeads) -> Result<Option<Tensor>> {
    let sizes = op.sizes()?;
    let [q, k, v] =
        [("q", op.q), ("k", op.k), ("v", op.v)].map(|(name, tensor)| Operand::of(OP, name, tensor));
    let Some(x) = q.rocm() else { return Ok(None) };
    let (dtype, cache, queries) = (x.dtype(), op.keys.dtype(), op.queries_dtype());
    let elements = element(dtype).zip(element(queries));
    let kernel = elements.and_then(|(dtype, queries)| match op.scales {
        Some(_) => contract::CacheHeadsEncoded::kernel(dtype, queries).map(Kernel::Encoded),
        None => contract::CacheHeads::kernel(dtype, queries).map(Kernel::Plain),
    });
    let Some(kernel) = kernel.filter(|_| sizes.width % 2 == 0 && sizes.rows > 0) else { return Ok(None) };
    let (q, k, v) = (q.rows(x)?, k.rows(x)?, v.rows(x)?);
    let at = |name, tensor: &Tensor, dtype| Operand::of(OP, name, tensor).address(x, dtype);
    let optional = |name, tensor: Option<&Tensor>| match tensor {
        Some(tensor) => at(name, tensor, dtype),
        None => Ok(DevicePtr::NULL),
    };
    let bias = optional("bias", op.bias)?;
    let q_norm = optional("q_norm", op.norms.map(|norms| norms.query))?;
    let k_norm = optional("k_norm", op.norms.map(|norms| norms.key))?;
    let (cos, sin) = (at("cos", op.rotary.cos, DType::F32)?, at("sin", op.rotary.sin, DType::F32)?);
    let (position_of, slot_of) =
        (at("positions", op.positions, DType::U32)?, at("slots", op.slots, DType::U32)?);
    let (keys, values) = (at("keys", op.keys, cache)?, at("values", op.values, cache)?);
    let scales = match op.scales {
        Some(CacheScales { scales, .. }) => at("scales", scales, DType::BF16)?,
        None => DevicePtr::NULL,
    };
    let elements = sizes.rows * sizes.heads * sizes.width;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), queries, elements, OP)? };
    let out = output(&dst)?;
    let size = dtype.size_in_bytes();
    let pack = PACK_BYTES / size.max(cache.size_in_bytes());
    // Addresses and sizes that determine whether accesses are vectorized, in elements of each dtype.
    let of_x = [q.0, k.0, v.0, bias, q_norm, k_norm].map(|ptr| ptr.0.addr() / size);
    let of_cache = [(keys, cache), (values, cache), (out, queries)];
    let of_cache = of_cache.map(|(ptr, dtype)| ptr.0.addr() / dtype.size_in_bytes());
    let of_table = [cos, sin].map(|ptr| ptr.0.addr() / DType::F32.size_in_bytes());
    let counts = [sizes.width / 2, sizes.pairs, q.1, k.1, v.1];
    let all = of_x.iter().chain(&of_cache).chain(&of_table).chain(&counts);
    let in_packs = all.fold(0, |bits, n| bits | n) % pack == 0;
    let units = sizes.width / if in_packs { 2 * pack } else { 2 };
    let lanes = units.next_power_of_two().min(MAX_LANES);
    let threads = (sizes.heads + 2 * sizes.key_heads) * lanes;
    let block = match sizes.rows {
        // Spreads few rows over more multiprocessors.
        0..=8 => 64,
        _ => threads.next_power_of_two().clamp(64, BLOCK),
    };
    let config = LaunchConfig {
        grid: (threads.div_ceil(block) as u32, sizes.rows.min(MAX_GRID) as u32, 1),
        block: (block as u32, 1, 1),
        lds_bytes: 0,
    };
    // The common arguments of all kernels, followed by those of one kernel.
    macro_rules! arguments {
        ($kernel:ident $(, $extra:ident)*) => { contract::$kernel {
        rows: count(OP, sizes.rows)?,
        q_heads: count(OP, sizes.heads)?,
        kv_heads: count(OP, sizes.key_heads)?,
        width: count(OP, sizes.width)?,
        pairs: count(OP, sizes.pairs)?,
        lanes: lanes as u32,
        table: count(OP, sizes.positions)?,
        slots: count(OP, sizes.slots)?,
        interleaved: op.rotary.interleaved,
        in_packs,
        eps: op.norms.map_or(0.0, |norms| norms.eps),
        q_stride: q.1,
        k_stride: k.1,
        v_stride: v.1,
        q: q.0,
        k: k.0,
        v: v.0,
        bias,
        q_norm,
        k_norm,
        cos,
        sin,
        position_of,
        slot_of,
        out,
        keys,
        values,
        $($extra,)*
        } };
    }
    match kernel {
        // SAFETY: the operands were checked against their buffers for these sizes, and the kernel checks positions and slots.
        Kernel::Plain(kernel) => unsafe {
            x.device().launch_overlapping(kernel, config, &arguments!(CacheHeads))?
        },
        Kernel::Encoded(kernel) => {
            let is_fp8 = cache == DType::F8E4M3;
            // SAFETY: as above.
            unsafe {
                x.device().launch_overlapping(
                    kernel,
                    config,
                    &arguments!(CacheHeadsEncoded, scales, is_fp8),
                )?
            }
        }
    };
    let shape = (sizes.rows, sizes.heads, sizes.width);
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), shape, BackpropOp::none(), false)))
}

/// Moves the sequences of a static cache to their next positions, up to `capacity`, in one launch. `state` (3 · sequences + 1) of
/// u32 has their positions, the slots of their next keys, and the ends of their keys after a 0. Returns false on other devices.
///
/// # Errors
/// If the state has another size or dtype or is strided, or the launch fails.
pub fn advance_cache(state: &Tensor, sequences: usize, capacity: usize) -> Result<bool> {
    let operand = Operand::of(OP, "state", state);
    let Some((storage, kernel)) = operand.rocm().zip(contract::CacheAdvance::kernel()) else {
        return Ok(false);
    };
    let (words, expected) = (state.elem_count(), 3 * sequences + 1);
    if words != expected {
        bail!("{OP}: the state of {sequences} sequences has {words} words instead of {expected}")
    }
    let arguments = contract::CacheAdvance {
        sequences: count(OP, sequences)?,
        capacity: count(OP, capacity)?,
        state: operand.address(storage, DType::U32)?,
    };
    let config = LaunchConfig { grid: (1, 1, 1), block: (MAX_LANES as u32, 1, 1), lds_bytes: 0 };
    // SAFETY: the state has three words for each sequence and one more. The kernel waits for earlier launches at its start.
    unsafe { storage.device().launch_overlapping(kernel, config, &arguments)? };
    Ok(true)
}
