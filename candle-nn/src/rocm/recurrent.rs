//! Recurrent layers, whose states are updated in place, in one launch each.
use super::operand::Operand;
use super::{count, output};
use crate::recurrent::{self, ConvSizes, HeadSizes, Sequences};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{
    CausalConv, GatedDelta, SelectiveScan, BLOCK, CONV_ROWS, CONV_WIDTH, DELTA_LANES, DELTA_WIDTH,
};
use candle::rocm::{element, DevicePtr, LaunchConfig, RocmStorage};
use candle::{DType, Result, Storage, Tensor};

/// HIP's limit for y and z of a grid; kernels stride over more pieces.
const MAX_GRID: usize = 0xffff;
/// Widths of queries and keys for which there is code.
const KEY_WIDTHS: [usize; 4] = [16, 32, 64, DELTA_WIDTH];
/// Number of value columns whose lanes together fill a group of 32 lanes, within which shuffles combine values.
const VALUE_COLUMNS: usize = 32 / DELTA_LANES;

/// Returns the addresses of the rows, slots and positions of sequences.
fn addresses(op: &'static str, sequences: &Sequences, first: &RocmStorage) -> Result<[DevicePtr; 3]> {
    let at = |name, tensor: &Tensor| Operand::of(op, name, tensor).address(first, DType::U32);
    Ok([at("rows", sequences.rows)?, at("slots", sequences.slots)?, at("positions", sequences.positions)?])
}

/// Computes [`recurrent::CausalConv`] in one launch. Returns `None` if separate operations must be used: on other devices, or
/// for other dtypes and widths, and for too many sequences.
///
/// # Errors
/// If shapes do not match, operands are on several devices or have other dtypes, or there is not enough memory for the
/// result.
pub fn causal_conv(op: &recurrent::CausalConv) -> Result<Option<Tensor>> {
    const OP: &str = "causal-conv";
    let ConvSizes { rows, channels, width, slots } = op.sizes()?;
    let x = Operand::of(OP, "x", op.x);
    let Some(first) = x.rocm() else { return Ok(None) };
    let (sequences, dtype) = (op.sequences.count(), first.dtype());
    let kernel = element(dtype).and_then(CausalConv::kernel);
    let has_kernel = width == CONV_WIDTH && rows * channels > 0 && (1..=MAX_GRID).contains(&sequences);
    let Some(kernel) = kernel.filter(|_| has_kernel) else { return Ok(None) };
    let (at, x_stride) = x.rows(first)?;
    let [rows_of, slot_of, position_of] = addresses(OP, &op.sequences, first)?;
    let weight = Operand::of(OP, "weight", op.weight).address(first, DType::F32)?;
    let bias = op.bias.map(|bias| Operand::of(OP, "bias", bias).address(first, DType::F32)).transpose()?;
    let states = Operand::of(OP, "states", op.states).address(first, dtype)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(first.device(), dtype, rows * channels, OP)? };
    let block = channels.next_power_of_two().clamp(32, BLOCK.min(128));
    let pieces = op.sequences.max_rows.min(rows).div_ceil(CONV_ROWS).clamp(1, MAX_GRID);
    let config = LaunchConfig {
        grid: (channels.div_ceil(block) as u32, sequences as u32, pieces as u32),
        block: (block as u32, 1, 1),
        lds_bytes: 0,
    };
    let arguments = CausalConv {
        x: at,
        weight,
        bias: bias.unwrap_or(DevicePtr(std::ptr::null_mut())),
        rows_of,
        slot_of,
        position_of,
        states,
        out: output(&dst)?,
        channels: count(OP, channels)?,
        slots: count(OP, slots)?,
        x_stride,
    };
    // SAFETY: the operands were checked against their buffers for these sizes, and the kernel checks the slots.
    unsafe { first.device().launch(kernel, config, &arguments)? };
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), (rows, channels), BackpropOp::none(), false)))
}

impl HeadSizes {
    /// Returns true if there is code for these heads, in so many sequences.
    fn have_kernel(&self, sequences: usize) -> bool {
        KEY_WIDTHS.contains(&self.key_width)
            && self.value_width.is_multiple_of(VALUE_COLUMNS)
            && self.value_width <= DELTA_WIDTH
            && self.rows > 0
            && (1..=MAX_GRID).contains(&sequences)
    }

    /// Returns the grid and the workgroups of a kernel.
    fn launch(&self, op: &'static str, sequences: usize) -> Result<LaunchConfig> {
        Ok(LaunchConfig {
            grid: (count(op, self.value_heads)?, sequences as u32, 1),
            block: ((self.value_width * DELTA_LANES) as u32, 1, 1),
            lds_bytes: 0,
        })
    }
}

/// Computes [`recurrent::GatedDelta`] in one launch. Returns `None` if separate operations must be used: on other devices, or
/// for other dtypes and widths, and for too many sequences.
///
/// # Errors
/// See [`causal_conv`].
pub fn gated_delta(op: &recurrent::GatedDelta) -> Result<Option<Tensor>> {
    const OP: &str = "gated-delta";
    let sizes = op.sizes()?;
    let HeadSizes { rows, key_heads, value_heads, key_width, value_width, slots } = sizes;
    let qkv = Operand::of(OP, "qkv", op.qkv);
    let Some(first) = qkv.rocm() else { return Ok(None) };
    let (sequences, dtype) = (op.sequences.count(), first.dtype());
    let kernel = element(dtype).and_then(GatedDelta::kernel);
    let Some(kernel) = kernel.filter(|_| sizes.have_kernel(sequences)) else { return Ok(None) };
    let rows_of_operand = |name, tensor| Operand::of(OP, name, tensor).rows(first);
    let ((a, a_stride), (b, b_stride), (z, z_stride)) =
        (rows_of_operand("a", op.a)?, rows_of_operand("b", op.b)?, rows_of_operand("z", op.z)?);
    let at = |name, tensor: &Tensor, dtype| Operand::of(OP, name, tensor).address(first, dtype);
    let (rate, dt_bias) = (at("rate", op.rate, DType::F32)?, at("dt_bias", op.dt_bias, DType::F32)?);
    let (norm, states) = (at("norm", op.norm, dtype)?, at("states", op.states, DType::F32)?);
    let [rows_of, slot_of, position_of] = addresses(OP, &op.sequences, first)?;
    let width = value_heads * value_width;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(first.device(), dtype, rows * width, OP)? };
    let config = sizes.launch(OP, sequences)?;
    let arguments = GatedDelta {
        qkv: qkv.address(first, dtype)?,
        a,
        b,
        z,
        rate,
        dt_bias,
        norm,
        rows_of,
        slot_of,
        position_of,
        states,
        out: output(&dst)?,
        key_heads: count(OP, key_heads)?,
        value_heads: count(OP, value_heads)?,
        key_width: count(OP, key_width)?,
        value_width: count(OP, value_width)?,
        slots: count(OP, slots)?,
        eps: op.eps,
        a_stride: count(OP, a_stride)?,
        b_stride: count(OP, b_stride)?,
        z_stride: count(OP, z_stride)?,
    };
    // SAFETY: the operands were checked against their buffers for these sizes, and the kernel checks the slots.
    unsafe { first.device().launch(kernel, config, &arguments)? };
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), (rows, width), BackpropOp::none(), false)))
}

/// Computes [`recurrent::SelectiveScan`] in one launch. Returns `None` if separate operations must be used: on other devices,
/// or for other dtypes and widths, and for too many sequences.
///
/// # Errors
/// See [`causal_conv`].
pub fn selective_scan(op: &recurrent::SelectiveScan) -> Result<Option<Tensor>> {
    const OP: &str = "selective-scan";
    let sizes = op.sizes()?;
    let HeadSizes { rows, key_heads, value_heads, key_width, value_width, slots } = sizes;
    let qkv = Operand::of(OP, "qkv", op.qkv);
    let Some(first) = qkv.rocm() else { return Ok(None) };
    let (sequences, dtype) = (op.sequences.count(), first.dtype());
    let kernel = element(dtype).and_then(SelectiveScan::kernel);
    let Some(kernel) = kernel.filter(|_| sizes.have_kernel(sequences)) else { return Ok(None) };
    let rows_of_operand = |name, tensor| Operand::of(OP, name, tensor).rows(first);
    let ((a, a_stride), (z, z_stride)) = (rows_of_operand("a", op.a)?, rows_of_operand("z", op.z)?);
    let floats = |name, tensor: &Tensor| Operand::of(OP, name, tensor).address(first, DType::F32);
    let (rate, dt_bias) = (floats("rate", op.rate)?, floats("dt_bias", op.dt_bias)?);
    let (skip, states) = (floats("skip", op.skip)?, floats("states", op.states)?);
    let [rows_of, slot_of, position_of] = addresses(OP, &op.sequences, first)?;
    let width = value_heads * value_width;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(first.device(), dtype, rows * width, OP)? };
    let config = sizes.launch(OP, sequences)?;
    let [min_step, max_step] = op.step_limits;
    let arguments = SelectiveScan {
        qkv: qkv.address(first, dtype)?,
        a,
        z,
        rate,
        dt_bias,
        skip,
        rows_of,
        slot_of,
        position_of,
        states,
        out: output(&dst)?,
        key_heads: count(OP, key_heads)?,
        value_heads: count(OP, value_heads)?,
        key_width: count(OP, key_width)?,
        value_width: count(OP, value_width)?,
        slots: count(OP, slots)?,
        min_step,
        max_step,
        a_stride: count(OP, a_stride)?,
        z_stride: count(OP, z_stride)?,
    };
    // SAFETY: the operands were checked against their buffers for these sizes, and the kernel checks the slots.
    unsafe { first.device().launch(kernel, config, &arguments)? };
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), (rows, width), BackpropOp::none(), false)))
}
