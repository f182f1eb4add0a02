//! Dispatches attention calls of this crate to Composable Kernel.
use candle::backend::{BackendDevice, BackendStorage};
use candle::rocm::{Attention, AttentionOperand, AttentionOutput, RocmStorage};
use candle::{bail, DType, Error, Layout, Result, Shape};

use super::choice::{choice, is_in_table, Choice};
use super::interface::{Element, ARCHS};
use super::library::{Library, FOLDER_VARIABLE};
use super::{LogSumExp, Operand, Problem, SequenceStarts};

/// Computes `attention` with Composable Kernel if the choice and an instance allow it. `None` leaves the call to Candle's
/// kernels, which also report errors. `out` is the layout that [`Attention::forward`] takes.
pub(crate) fn try_forward(
    attention: &Attention,
    op: &'static str,
    [q, k, v]: [AttentionOperand; 3],
    out: &Layout,
) -> Result<Option<AttentionOutput>> {
    let device = q.0.device();
    let Some(library) = library(device.arch())? else { return Ok(None) };
    let Some(element) = element(attention, [q, k, v]) else { return Ok(None) };
    let starts = attention.sequences.as_ref().map(|sequences| [sequences.queries, sequences.keys]);
    for (storage, _) in [k, v].into_iter().chain(starts.into_iter().flatten()) {
        if storage.device().ordinal() != device.ordinal() {
            return Ok(None);
        }
    }
    let (outer, heads, rows, width) = q.1.shape().dims4()?;
    let (_, key_heads, keys, value_width) = v.1.shape().dims4()?;
    let (batch, queries, keys) = match &attention.sequences {
        Some(sequences) => {
            let starts = sequences.queries.1.shape().dims1()?;
            (starts.saturating_sub(1), sequences.max_queries.min(rows), sequences.max_keys)
        }
        None => (outer, rows, keys),
    };
    if batch * queries * heads * width == 0 || v.1.shape().elem_count() == 0 {
        return Ok(None);
    }
    let address = |(storage, layout): AttentionOperand| Ok::<_, Error>(storage.ptr(layout, op)?.0 as u64);
    let starts = match starts {
        Some([queries, keys]) => Some(SequenceStarts { queries: address(queries)?, keys: address(keys)? }),
        None => None,
    };
    let (left, right) = attention.window;
    let mut problem = Problem {
        element,
        batch,
        heads,
        key_heads,
        queries,
        keys,
        width,
        value_width,
        scale: attention.scale,
        left,
        right,
        q: operand(address(q)?, q.1),
        k: operand(address(k)?, k.1),
        v: operand(address(v)?, v.1),
        o: operand(0, out),
        log_sums: LogSumExp { address: 0, head: rows, batch: heads * rows },
        starts,
    };
    let Ok(call) = problem.call() else { return Ok(None) };
    let is_wanted =
        choice() == Choice::ComposableKernel || is_in_table(library.arch(), &problem, call.instance);
    if !is_wanted || library.code_object(call.instance).is_none() {
        return Ok(None);
    }
    let all_rows = outer * heads * rows;
    // As with Candle's kernels, rows outside of all sequences are zero if statistics are kept: the backward pass reads them.
    let as_zeros = attention.statistics && attention.sequences.is_some();
    let fresh = |dtype, elements: usize| match as_zeros {
        true => device.zeros_impl(&Shape::from(elements), dtype),
        // SAFETY: the kernel writes every element, except in rows outside of all sequences.
        false => unsafe { RocmStorage::alloc(device, dtype, elements, op) },
    };
    let (made, log_sums) = (fresh(q.0.dtype(), all_rows * value_width)?, fresh(DType::F32, all_rows)?);
    problem.o.address = address((&made, out))?;
    problem.log_sums.address = address((&log_sums, &Layout::contiguous(all_rows)))?;
    for (storage, _) in [k, v].into_iter().chain(attention.sequences.iter().flat_map(|s| [s.queries, s.keys]))
    {
        q.0.order_after(storage)?;
    }
    let call = problem.call().map_err(Error::wrap)?;
    // SAFETY: layouts were checked. `Choice::ComposableKernel` makes the user responsible for sequence lengths.
    unsafe { call.run(device, library)? };
    let statistics = attention.statistics.then_some(log_sums);
    Ok(Some(AttentionOutput { out: made, statistics }))
}

/// Returns the code objects for an architecture, if they are to be used.
fn library(arch: &str) -> Result<Option<&'static Library>> {
    if choice() == Choice::Candle {
        return Ok(None);
    }
    let library = Library::from_environment(arch).map_err(Error::wrap)?;
    if library.is_none()
        && choice() == Choice::ComposableKernel
        && ARCHS.iter().any(|known| arch.starts_with(known))
    {
        bail!(
            "Composable Kernel was chosen for attention on {arch}, but {FOLDER_VARIABLE} is not set; set it to the \
             folder that `cargo xtask ck --arch ARCH --out FOLDER` has filled"
        )
    }
    Ok(library)
}

/// Returns the element type of all operands, or `None` if a feature of the call is unsupported.
fn element(attention: &Attention, [q, k, v]: [AttentionOperand; 3]) -> Option<Element> {
    let unsupported = [attention.slopes, attention.sinks, attention.mask, attention.ranges, attention.pages];
    let is_plain = unsupported.iter().all(Option::is_none) && !attention.softcap.is_some_and(|cap| cap > 0.0);
    let are_same = [k, v].iter().all(|(storage, _)| storage.dtype() == q.0.dtype());
    let are_starts = |s: &candle::rocm::AttentionSequences| {
        [s.queries, s.keys].iter().all(|(starts, _)| matches!(starts.dtype(), DType::U32 | DType::I32))
    };
    if !is_plain || !are_same || !attention.sequences.as_ref().is_none_or(are_starts) {
        return None;
    }
    match q.0.dtype() {
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

/// Converts a layout (batch, heads, rows, width) with dense rows. Strides of dims of size 1 are ignored.
fn operand(address: u64, layout: &Layout) -> Operand {
    let stride = |dim: usize| if layout.dims()[dim] > 1 { layout.stride()[dim] } else { 0 };
    Operand { address, row: stride(2), head: stride(1), batch: stride(0) }
}
