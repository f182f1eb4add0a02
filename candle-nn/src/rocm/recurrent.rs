//! Recurrent layers, whose states are updated in place, in one launch each.
use super::operand::Operand;
use super::{count, output};
use crate::recurrent::{self, ConvSizes, HeadSizes, Sequences};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{
    CausalConv, RecurrentHeads, RecurrentHeadsRule, BLOCK, CONV_ROWS, CONV_WIDTH, DELTA_LANES, DELTA_WIDTH,
    MAMBA1_WIDTH,
};
use candle::rocm::{element, DevicePtr, LaunchConfig, RocmStorage};
use candle::{DType, Result, Storage, Tensor};

/// HIP's limit for y and z of a grid; kernels stride over more pieces.
const MAX_GRID: usize = 0xffff;
/// Widths of queries and keys for which there is code.
const KEY_WIDTHS: [usize; 4] = [16, 32, 64, DELTA_WIDTH];
/// Number of value columns whose lanes together fill a group of 32 lanes, within which shuffles combine values.
const VALUE_COLUMNS: usize = 32 / DELTA_LANES;
// The first piece of a sequence's rows has all rows whose states are kept, except for the last one.
const _: () = assert!(recurrent::KEPT_ROWS <= CONV_ROWS);

/// Returns the addresses of the rows, slots, positions and kept slots of sequences.
fn addresses(op: &'static str, sequences: &Sequences, first: &RocmStorage) -> Result<[DevicePtr; 4]> {
    let at = |name, tensor: &Tensor| Operand::of(op, name, tensor).address(first, DType::U32);
    let [rows, slots] = [at("rows", sequences.rows)?, at("slots", sequences.slots)?];
    Ok([rows, slots, at("positions", sequences.positions)?, at("kept", sequences.kept)?])
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
    let [rows_of, slot_of, position_of, kept_of] = addresses(OP, &op.sequences, first)?;
    let weight = Operand::of(OP, "weight", op.weight).address(first, DType::F32)?;
    let bias = op.bias.map(|bias| Operand::of(OP, "bias", bias).address(first, DType::F32)).transpose()?;
    let states = Operand::of(OP, "states", op.states).address(first, dtype)?;
    // SAFETY: the kernel writes every element, except in rows of faults that it reports. These stay uninitialized, and
    // every later wait for the device returns the error.
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
        kept_of,
        states,
        out: output(&dst)?,
        rows: count(OP, rows)?,
        channels: count(OP, channels)?,
        slots: count(OP, slots)?,
        x_stride,
    };
    // SAFETY: the operands were checked against their buffers for these sizes, and the kernel checks rows and slots.
    unsafe { first.device().launch(kernel, config, &arguments)? };
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), (rows, channels), BackpropOp::none(), false)))
}

/// Operands of a recurrence over heads. A rule has only some of the optional ones.
struct Heads<'a> {
    rule: RecurrentHeadsRule,
    sizes: HeadSizes,
    qkv: &'a Tensor,
    a: &'a Tensor,
    b: Option<&'a Tensor>,
    z: Option<&'a Tensor>,
    rate: &'a Tensor,
    dt_bias: &'a Tensor,
    norm: Option<&'a Tensor>,
    skip: Option<&'a Tensor>,
    eps: f32,
    step_limits: [f32; 2],
    is_mamba1: bool,
    states: &'a Tensor,
    sequences: Sequences<'a>,
}

impl Heads<'_> {
    /// Returns true if there is code for these sizes.
    fn have_kernel(&self) -> bool {
        let HeadSizes { rows, key_width, value_width, .. } = self.sizes;
        let has_keys =
            if self.is_mamba1 { key_width == MAMBA1_WIDTH } else { KEY_WIDTHS.contains(&key_width) };
        has_keys
            && value_width.is_multiple_of(VALUE_COLUMNS)
            && value_width <= DELTA_WIDTH
            && rows > 0
            && (1..=MAX_GRID).contains(&self.sequences.count())
    }

    /// Computes the results in one launch. Returns `None` if separate operations must be used.
    fn forward(self, op: &'static str) -> Result<Option<Tensor>> {
        let HeadSizes { rows, key_heads, value_heads, key_width, value_width, slots } = self.sizes;
        let qkv = Operand::of(op, "qkv", self.qkv);
        let Some(first) = qkv.rocm() else { return Ok(None) };
        let dtype = first.dtype();
        let kernel = element(dtype).and_then(|dtype| RecurrentHeads::kernel(self.rule, dtype));
        let Some(kernel) = kernel.filter(|_| self.have_kernel()) else { return Ok(None) };
        let null = DevicePtr(std::ptr::null_mut());
        let strided = |name, tensor: Option<&Tensor>| match tensor {
            Some(tensor) => {
                let (at, stride) = Operand::of(op, name, tensor).rows(first)?;
                Ok::<_, candle::Error>((at, count(op, stride)?))
            }
            None => Ok((null, 0)),
        };
        let ((a, a_stride), (b, b_stride), (z, z_stride)) =
            (strided("a", Some(self.a))?, strided("b", self.b)?, strided("z", self.z)?);
        let dense = |name, tensor: Option<&Tensor>, dtype| match tensor {
            Some(tensor) => Operand::of(op, name, tensor).address(first, dtype),
            None => Ok(null),
        };
        let floats = |name, tensor| dense(name, tensor, DType::F32);
        let [rows_of, slot_of, position_of, kept_of] = addresses(op, &self.sequences, first)?;
        let width = value_heads * value_width;
        // SAFETY: the kernel writes every element, except in rows of faults that it reports. These stay uninitialized, and
        // every later wait for the device returns the error.
        let dst = unsafe { RocmStorage::alloc(first.device(), dtype, rows * width, op)? };
        let config = LaunchConfig {
            grid: (count(op, value_heads)?, self.sequences.count() as u32, 1),
            block: ((value_width * DELTA_LANES) as u32, 1, 1),
            lds_bytes: 0,
        };
        let [min_step, max_step] = self.step_limits;
        let arguments = RecurrentHeads {
            qkv: qkv.address(first, dtype)?,
            a,
            b,
            z,
            rate: floats("rate", Some(self.rate))?,
            dt_bias: floats("dt_bias", Some(self.dt_bias))?,
            norm: dense("norm", self.norm, dtype)?,
            skip: floats("skip", self.skip)?,
            rows_of,
            slot_of,
            position_of,
            kept_of,
            states: floats("states", Some(self.states))?,
            out: output(&dst)?,
            rows: count(op, rows)?,
            key_heads: count(op, key_heads)?,
            value_heads: count(op, value_heads)?,
            key_width: count(op, key_width)?,
            value_width: count(op, value_width)?,
            slots: count(op, slots)?,
            eps: self.eps,
            min_step,
            max_step,
            a_stride,
            b_stride,
            z_stride,
            is_mamba1: self.is_mamba1,
        };
        // SAFETY: the operands were checked against their buffers for these sizes, those that the rule reads are not null, and
        // the kernel checks rows and slots.
        unsafe { first.device().launch(kernel, config, &arguments)? };
        Ok(Some(Tensor::from_storage(Storage::Rocm(dst), (rows, width), BackpropOp::none(), false)))
    }
}

/// Computes [`recurrent::GatedDelta`] in one launch. Returns `None` if separate operations must be used: on other devices, or
/// for other dtypes and widths, and for too many sequences.
///
/// # Errors
/// See [`causal_conv`].
pub fn gated_delta(op: &recurrent::GatedDelta) -> Result<Option<Tensor>> {
    let heads = Heads {
        rule: RecurrentHeadsRule::GatedDelta,
        sizes: op.sizes()?,
        qkv: op.qkv,
        a: op.a,
        b: Some(op.b),
        z: Some(op.z),
        rate: op.rate,
        dt_bias: op.dt_bias,
        norm: Some(op.norm),
        skip: None,
        eps: op.eps,
        step_limits: [0.0, f32::INFINITY],
        is_mamba1: false,
        states: op.states,
        sequences: op.sequences,
    };
    heads.forward("gated-delta")
}

/// Computes [`recurrent::SelectiveScan`] in one launch. Returns `None` if separate operations must be used: on other devices,
/// or for other dtypes and widths, and for too many sequences.
///
/// # Errors
/// See [`causal_conv`].
pub fn selective_scan(op: &recurrent::SelectiveScan) -> Result<Option<Tensor>> {
    let heads = Heads {
        rule: RecurrentHeadsRule::SelectiveScan,
        sizes: op.sizes()?,
        qkv: op.qkv,
        a: op.a,
        b: None,
        z: op.z,
        rate: op.rate,
        dt_bias: op.dt_bias,
        norm: None,
        skip: Some(op.skip),
        eps: 0.0,
        step_limits: op.step_limits,
        is_mamba1: op.is_mamba1(),
        states: op.states,
        sequences: op.sequences,
    };
    heads.forward("selective-scan")
}
