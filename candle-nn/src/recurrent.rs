//! Fused operations of recurrent layers, over the rows of several sequences: a causal convolution, the gated delta rule, and
//! the selective state spaces of Mamba 1 and 2. They take one launch each on ROCm. On other devices, and for operands that
//! have no kernel, they consist of separate operations with the same results up to rounding.
//!
//! Each sequence continues from the state of a slot. The states after some of its rows are kept in slots, too.
use crate::ops::{rms_norm, sigmoid};
use candle::{bail, DType, Result, Tensor, D};

/// Epsilon that is added to the squared length of keys and queries.
const LENGTH_EPSILON: f64 = 1e-6;

/// Number of first rows of a sequence whose states can be kept, in addition to that of its last row.
pub const KEPT_ROWS: usize = 16;

/// Sequences of rows, and the slots of their states.
#[derive(Clone, Copy)]
pub struct Sequences<'a> {
    /// First row of each sequence, and the number of rows, u32 (sequences + 1).
    pub rows: &'a Tensor,
    /// Slot from whose state each sequence continues, u32 (sequences). With `u32::MAX`, it begins with a state of zeros.
    pub slots: &'a Tensor,
    /// Slot that keeps the state after each row, u32 (rows), which may be that of its sequence. It is `u32::MAX`, which is no
    /// slot, for all rows of a sequence between the first [`KEPT_ROWS`] and the last one.
    pub kept: &'a Tensor,
    /// Position of each row, u32 (rows). A sequence whose first row has position 0 begins with a state of zeros.
    pub positions: &'a Tensor,
    /// Number of rows of the longest sequence, or more.
    pub max_rows: usize,
}

/// A sequence on the host.
struct Sequence {
    first: usize,
    rows: usize,
    /// Slot from whose state it continues.
    slot: Option<usize>,
    /// Slot that keeps the state after each row.
    kept: Vec<Option<usize>>,
}

impl Sequences<'_> {
    /// Returns the number of sequences.
    pub(crate) fn count(&self) -> usize {
        self.slots.elem_count()
    }

    /// Returns true if the shapes match operands of `rows` rows.
    fn match_rows(&self, rows: usize) -> bool {
        let of_rows = [self.positions, self.kept].iter().all(|each| each.dims() == [rows]);
        self.slots.rank() == 1 && self.rows.dims() == [self.count() + 1] && of_rows
    }

    /// Copies the sequences to the host.
    fn read(&self, op: &str, slots: usize) -> Result<Vec<Sequence>> {
        let (rows, positions) = (self.rows.to_vec1::<u32>()?, self.positions.to_vec1::<u32>()?);
        let kept = self.kept.to_vec1::<u32>()?;
        let place = |slot: u32| match slot as usize {
            _ if slot == u32::MAX => Ok(None),
            slot if slot >= slots => bail!("{op}: slot {slot} is not below {slots}"),
            slot => Ok(Some(slot)),
        };
        let sequence = |(bounds, slot): (&[u32], u32)| {
            let (first, end) = (bounds[0] as usize, bounds[1] as usize);
            if first > end || end > positions.len() {
                bail!("{op}: a sequence has the rows {first}..{end} of {}", positions.len())
            }
            let slot = place(slot)?.filter(|_| first < end && positions[first] > 0);
            let kept = kept[first..end].iter().map(|slot| place(*slot)).collect::<Result<_>>()?;
            Ok(Sequence { first, rows: end - first, slot, kept })
        };
        let all = rows.windows(2).zip(self.slots.to_vec1()?).map(sequence).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|sequence| sequence.rows > 0).collect())
    }
}

/// Returns an error for the first operand that does not match.
fn check(op: &str, x: &Tensor, states: &Tensor, matches: &[(&str, bool)]) -> Result<()> {
    match matches.iter().find(|(_, matches)| !matches) {
        Some((name, _)) => {
            bail!("{op}: {name} does not match rows {:?} and states {:?}", x.shape(), states.shape())
        }
        None => Ok(()),
    }
}

/// Causal convolution of each channel over the rows of its sequence, with the last inputs as state, and SiLU of the results.
#[derive(Clone, Copy)]
pub struct CausalConv<'a> {
    /// Inputs (rows, channels). Rows may be strided.
    pub x: &'a Tensor,
    /// Weights, f32 (channels, width). The last one is that of the row itself.
    pub weight: &'a Tensor,
    /// Summand of each channel before SiLU, f32 (channels).
    pub bias: Option<&'a Tensor>,
    /// Last inputs of each slot, oldest first, contiguous (slots, width - 1, channels), in the dtype of `x`.
    pub states: &'a Tensor,
    /// Sequences of the rows.
    pub sequences: Sequences<'a>,
}

/// Sizes of the operands of [`CausalConv`].
pub(crate) struct ConvSizes {
    pub(crate) rows: usize,
    pub(crate) channels: usize,
    pub(crate) width: usize,
    pub(crate) slots: usize,
}

impl CausalConv<'_> {
    /// Returns the results (rows, channels), and updates the states.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match. Rows and slots out of range return an error on the CPU. On a GPU, the next
    /// call that waits for the device does; such rows are not computed. Without its slot, a sequence begins with a state of
    /// zeros, or a state is not kept.
    pub fn forward(&self) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(out) = crate::rocm::causal_conv(self)? {
            return Ok(out);
        }
        self.forward_separately()
    }

    /// Like [`Self::forward`], with separate operations on all devices.
    ///
    /// # Errors
    /// See [`Self::forward`].
    pub fn forward_separately(&self) -> Result<Tensor> {
        let ConvSizes { channels, width, slots, .. } = self.sizes()?;
        let (dtype, device) = (self.x.dtype(), self.x.device());
        let weights = self.weight.t()?.contiguous()?;
        let mut out = Vec::new();
        for Sequence { first, rows, slot, kept } in self.sequences.read("causal-conv", slots)? {
            let before = match slot {
                Some(slot) => self.states.get(slot)?,
                None => Tensor::zeros((width - 1, channels), dtype, device)?,
            };
            let all = Tensor::cat(&[before, self.x.narrow(0, first, rows)?.contiguous()?], 0)?;
            let exact = all.to_dtype(DType::F32)?;
            let term = |place: usize| {
                exact.narrow(0, place, rows)?.contiguous()?.broadcast_mul(&weights.narrow(0, place, 1)?)
            };
            let sum = (1..width).try_fold(term(0)?, |sum, place| sum + term(place)?)?;
            let sum = self.bias.map_or(Ok(sum.clone()), |bias| sum.broadcast_add(bias))?;
            out.push(sum.silu()?.to_dtype(dtype)?);
            for (row, slot) in kept.into_iter().enumerate() {
                if let Some(slot) = slot {
                    let last = all.narrow(0, row + 1, width - 1)?.contiguous()?.unsqueeze(0)?;
                    self.states.slice_set(&last, 0, slot)?;
                }
            }
        }
        join(&out, (0, channels), self.x)
    }

    /// Checks all shapes.
    pub(crate) fn sizes(&self) -> Result<ConvSizes> {
        let (rows, channels) = self.x.dims2()?;
        let ((slots, kept, of_state), width) = (self.states.dims3()?, self.weight.dim(D::Minus1)?);
        let matches = [
            ("weight", width > 1 && self.weight.dims() == [channels, width]),
            ("dtype of weight", self.weight.dtype() == DType::F32),
            ("bias", self.bias.is_none_or(|bias| bias.dims() == [channels] && bias.dtype() == DType::F32)),
            ("states", kept + 1 == width && of_state == channels && self.states.is_contiguous()),
            ("dtype of states", self.states.dtype() == self.x.dtype()),
            ("sequences", self.sequences.match_rows(rows)),
        ];
        check("causal-conv", self.x, self.states, &matches)?;
        Ok(ConvSizes { rows, channels, width, slots })
    }
}

/// Joins the results of all sequences.
fn join(out: &[Tensor], empty: (usize, usize), x: &Tensor) -> Result<Tensor> {
    match out.is_empty() {
        true => Tensor::zeros(empty, x.dtype(), x.device()),
        false => Tensor::cat(out, 0),
    }
}

/// Gated delta rule (Yang et al., "Gated Delta Networks"), and a gated RMS norm of its results.
///
/// Each head of values has a matrix S as state. Queries q and keys k are divided by their lengths, and queries also by the
/// root of their width. For each row, with the decay exp(rate · softplus(a + dt_bias)) and the learning rate sigmoid(b):
///
/// S ← decay · S, then S ← S + sigmoid(b) · (v - S k) kᵀ. The result is rms_norm(S q) · silu(z).
#[derive(Clone, Copy)]
pub struct GatedDelta<'a> {
    /// Heads of queries, keys and values (rows, 2 · key heads · key width + value heads · value width). Several consecutive
    /// heads of values share a head of keys.
    pub qkv: &'a Tensor,
    /// Inputs of the decay (rows, value heads). Rows of this and the next two may be strided.
    pub a: &'a Tensor,
    /// Inputs of the learning rate (rows, value heads).
    pub b: &'a Tensor,
    /// Inputs of the gate (rows, value heads · value width).
    pub z: &'a Tensor,
    /// Negative factor of the decay's exponent, f32 (value heads).
    pub rate: &'a Tensor,
    /// Bias that is added to `a`, f32 (value heads).
    pub dt_bias: &'a Tensor,
    /// Weight of the norm (value width), in the dtype of `qkv`.
    pub norm: &'a Tensor,
    /// Epsilon that is added to the mean square of the norm.
    pub eps: f32,
    /// Transposed matrices S of each slot, contiguous f32 (slots, value heads, value width, key width).
    pub states: &'a Tensor,
    /// Sequences of the rows.
    pub sequences: Sequences<'a>,
}

/// Sizes of heads with matrices as states.
pub(crate) struct HeadSizes {
    pub(crate) rows: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_width: usize,
    pub(crate) value_width: usize,
    pub(crate) slots: usize,
}

impl HeadSizes {
    /// Returns the sizes of heads of queries, keys and values `qkv`, and false if these do not match the states.
    fn of(qkv: &Tensor, states: &Tensor) -> Result<(Self, bool)> {
        let ((rows, channels), (slots, value_heads, value_width, key_width)) =
            (qkv.dims2()?, states.dims4()?);
        let values = value_heads * value_width;
        let key_heads = channels.saturating_sub(values).checked_div(2 * key_width).unwrap_or(0);
        let are_heads =
            key_heads > 0 && value_heads > 0 && value_heads.is_multiple_of(key_heads) && value_width > 0;
        let matches = are_heads && channels == 2 * key_heads * key_width + values;
        Ok((Self { rows, key_heads, value_heads, key_width, value_width, slots }, matches))
    }

    /// Returns queries and keys (rows, value heads, key width), each repeated for the heads of values that share it, and values
    /// (rows, value heads, value width), in f32.
    fn split(&self, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let Self { rows, key_heads, value_heads, key_width, value_width, .. } = *self;
        let (keys, qkv) = (key_heads * key_width, exact(qkv)?);
        let heads = |first: usize| {
            let x = qkv.narrow(1, first, keys)?.contiguous()?.reshape((rows, key_heads, 1, key_width))?;
            let x = x.broadcast_as((rows, key_heads, value_heads / key_heads, key_width))?;
            x.reshape((rows, value_heads, key_width))
        };
        let values = qkv.narrow(1, 2 * keys, value_heads * value_width)?.contiguous()?;
        Ok([heads(0)?, heads(keys)?, values.reshape((rows, value_heads, value_width))?])
    }

    /// Returns S q of each row, (1, value heads, value width), where S ← decay · S + change kᵀ, and updates the states.
    /// `decay` receives the row and returns factors that are broadcast to S. `change` receives the row and S k before the
    /// addition.
    fn recur(
        &self,
        (sequences, states): (Vec<Sequence>, &Tensor),
        [q, k]: [&Tensor; 2],
        decay: impl Fn(usize) -> Result<Tensor>,
        change: impl Fn(usize, &dyn Fn() -> Result<Tensor>) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let Self { value_heads, key_width, value_width, .. } = *self;
        let mut out = Vec::new();
        for Sequence { first, slot, kept, .. } in sequences {
            let mut state = match slot {
                Some(slot) => states.get(slot)?.copy()?,
                None => Tensor::zeros((value_heads, value_width, key_width), DType::F32, states.device())?,
            };
            for (row, kept) in (first..).zip(kept) {
                let (q, k) = (q.get(row)?.unsqueeze(1)?, k.get(row)?.unsqueeze(1)?);
                state = state.broadcast_mul(&decay(row)?)?;
                let change = change(row, &|| state.broadcast_mul(&k)?.sum(D::Minus1))?;
                state = (state + change.unsqueeze(2)?.broadcast_mul(&k)?)?;
                out.push(state.broadcast_mul(&q)?.sum(D::Minus1)?.unsqueeze(0)?);
                if let Some(slot) = kept {
                    states.slice_set(&state.unsqueeze(0)?, 0, slot)?;
                }
            }
        }
        Ok(out)
    }
}

/// Returns a contiguous copy in f32.
fn exact(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.to_dtype(DType::F32)
}

/// Returns softplus(x) = max(x, 0) + log(1 + exp(-|x|)).
fn softplus(x: &Tensor) -> Result<Tensor> {
    x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?
}

impl GatedDelta<'_> {
    /// Returns the results (rows, value heads · value width), and updates the states.
    ///
    /// # Errors
    /// See [`CausalConv::forward`].
    pub fn forward(&self) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(out) = crate::rocm::gated_delta(self)? {
            return Ok(out);
        }
        self.forward_separately()
    }

    /// Like [`Self::forward`], with separate operations on all devices.
    ///
    /// # Errors
    /// See [`Self::forward`].
    pub fn forward_separately(&self) -> Result<Tensor> {
        let sizes = self.sizes()?;
        let HeadSizes { rows, value_heads, key_width, value_width, slots, .. } = sizes;
        let dtype = self.qkv.dtype();
        let [q, k, v] = sizes.split(self.qkv)?;
        let normalized = |x: Tensor| {
            let length = (x.sqr()?.sum_keepdim(D::Minus1)? + LENGTH_EPSILON)?.sqrt()?;
            x.broadcast_div(&length)
        };
        let (q, k) = ((normalized(q)? / (key_width as f64).sqrt())?, normalized(k)?);
        let step = softplus(&exact(self.a)?.broadcast_add(self.dt_bias)?)?;
        let decay = step.broadcast_mul(self.rate)?.exp()?;
        let beta = sigmoid(&exact(self.b)?)?;
        let change = |row: usize, known: &dyn Fn() -> Result<Tensor>| {
            (v.get(row)? - known()?)?.broadcast_mul(&beta.get(row)?.unsqueeze(1)?)
        };
        let sequences = self.sequences.read("gated-delta", slots)?;
        let decay = |row| decay.get(row)?.reshape((value_heads, 1, 1));
        let out = sizes.recur((sequences, self.states), [&q, &k], decay, change)?;
        let width = value_heads * value_width;
        if out.is_empty() {
            return Tensor::zeros((rows, width), dtype, self.qkv.device());
        }
        let normed = rms_norm(&Tensor::cat(&out, 0)?.to_dtype(dtype)?, self.norm, self.eps)?;
        (exact(&normed.reshape((rows, width))?)? * exact(self.z)?.silu()?)?.to_dtype(dtype)
    }

    /// Checks all shapes.
    pub(crate) fn sizes(&self) -> Result<HeadSizes> {
        let (sizes, are_heads) = HeadSizes::of(self.qkv, self.states)?;
        let HeadSizes { rows, value_heads, value_width, .. } = sizes;
        let (of_heads, floats) = ([rows, value_heads], [self.rate, self.dt_bias]);
        let matches = [
            ("qkv", are_heads),
            ("a", self.a.dims() == of_heads),
            ("b", self.b.dims() == of_heads),
            ("z", self.z.dims() == [rows, value_heads * value_width]),
            ("rate or dt_bias", floats.iter().all(|x| x.dims() == [value_heads] && x.dtype() == DType::F32)),
            ("norm", self.norm.dims() == [value_width] && self.norm.dtype() == self.qkv.dtype()),
            ("dtype of states", self.states.dtype() == DType::F32 && self.states.is_contiguous()),
            ("sequences", self.sequences.match_rows(rows)),
        ];
        check("gated-delta", self.qkv, self.states, &matches)?;
        Ok(sizes)
    }
}

/// Selective state space of Mamba 2 (Dao and Gu, "Transformers are SSMs") or Mamba 1 (Gu and Dao, "Mamba"), and the gates of
/// its results.
///
/// Each head of values x has a matrix S as state. For each row, with the step Δ = softplus(a + dt_bias) within limits:
///
/// S ← exp(rate · Δ) · S + Δ x Bᵀ. The result is (S C + skip · x) · silu(z).
///
/// In Mamba 2, each head has a step, a rate and a factor `skip`. In Mamba 1, each element of x has a step and a factor, and each
/// element of S a rate; its division into heads is arbitrary, and all of them share one of B and C.
#[derive(Clone, Copy)]
pub struct SelectiveScan<'a> {
    /// Heads of C, B and x (rows, 2 · key heads · key width + value heads · value width): what are queries, keys and values in
    /// linear attention. Several consecutive heads of x share one of B and C.
    pub qkv: &'a Tensor,
    /// Inputs of the steps (rows, steps), of which there is one for each head or each element of x. Rows of this and the next
    /// may be strided.
    pub a: &'a Tensor,
    /// Inputs of the gate (rows, value heads · value width), if there is one.
    pub z: Option<&'a Tensor>,
    /// Negative factor of the decay's exponent, f32 (value heads) in Mamba 2, (value heads, value width, key width) in Mamba 1.
    pub rate: &'a Tensor,
    /// Summand of `a`, f32 (steps).
    pub dt_bias: &'a Tensor,
    /// Factor of x in the results, f32 (steps).
    pub skip: &'a Tensor,
    /// Least and largest step.
    pub step_limits: [f32; 2],
    /// Transposed matrices S of each slot, contiguous f32 (slots, value heads, value width, key width).
    pub states: &'a Tensor,
    /// Sequences of the rows.
    pub sequences: Sequences<'a>,
}

impl SelectiveScan<'_> {
    /// Returns the results (rows, value heads · value width), and updates the states.
    ///
    /// # Errors
    /// See [`CausalConv::forward`].
    pub fn forward(&self) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(out) = crate::rocm::selective_scan(self)? {
            return Ok(out);
        }
        self.forward_separately()
    }

    /// Like [`Self::forward`], with separate operations on all devices.
    ///
    /// # Errors
    /// See [`Self::forward`].
    pub fn forward_separately(&self) -> Result<Tensor> {
        let sizes = self.sizes()?;
        let HeadSizes { rows, value_heads, value_width, key_width, slots, .. } = sizes;
        let (dtype, width) = (self.qkv.dtype(), value_heads * value_width);
        let [q, k, v] = sizes.split(self.qkv)?;
        let [least, largest] = self.step_limits;
        // Steps of a head, and rates of a step.
        let (steps, rates) = if self.is_mamba1() { (value_width, key_width) } else { (1, 1) };
        let step = softplus(&exact(self.a)?.broadcast_add(self.dt_bias)?)?.clamp(least, largest)?;
        let step = step.reshape((rows, value_heads, steps))?;
        let rate = self.rate.reshape((value_heads, steps, rates))?;
        let decay = |row| step.get(row)?.unsqueeze(2)?.broadcast_mul(&rate)?.exp();
        let added = v.broadcast_mul(&step)?;
        let sequences = self.sequences.read("selective-scan", slots)?;
        let out = sizes.recur((sequences, self.states), [&q, &k], decay, |row, _| added.get(row))?;
        if out.is_empty() {
            return Tensor::zeros((rows, width), dtype, self.qkv.device());
        }
        let skipped = v.broadcast_mul(&self.skip.reshape((value_heads, steps))?)?;
        let out = (Tensor::cat(&out, 0)? + skipped)?.reshape((rows, width))?;
        match self.z {
            Some(z) => (out * exact(z)?.silu()?)?.to_dtype(dtype),
            None => out.to_dtype(dtype),
        }
    }

    /// Returns true if each element of x has a step.
    pub(crate) fn is_mamba1(&self) -> bool {
        self.rate.rank() == 3
    }

    /// Checks all shapes.
    pub(crate) fn sizes(&self) -> Result<HeadSizes> {
        let (sizes, are_heads) = HeadSizes::of(self.qkv, self.states)?;
        let HeadSizes { rows, key_heads, value_heads, key_width, value_width, .. } = sizes;
        let (steps, rates) = match self.is_mamba1() {
            true => (value_heads * value_width, vec![value_heads, value_width, key_width]),
            false => (value_heads, vec![value_heads]),
        };
        let are_floats = [self.rate, self.dt_bias, self.skip].iter().all(|x| x.dtype() == DType::F32);
        let have_steps = [self.dt_bias, self.skip].iter().all(|x| x.dims() == [steps]);
        let matches = [
            ("qkv", are_heads && (key_heads == 1 || !self.is_mamba1())),
            ("a", self.a.dims() == [rows, steps]),
            ("z", self.z.is_none_or(|z| z.dims() == [rows, value_heads * value_width])),
            ("rate, dt_bias or skip", are_floats && have_steps && self.rate.dims() == rates),
            ("dtype of states", self.states.dtype() == DType::F32 && self.states.is_contiguous()),
            ("sequences", self.sequences.match_rows(rows)),
        ];
        check("selective-scan", self.qkv, self.states, &matches)?;
        Ok(sizes)
    }
}
