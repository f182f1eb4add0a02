//! Functions of candle-flash-attn. The CPU device does not support them, so they are compared with the
//! formula.
mod formula;
mod plan;
mod refusals;

use candle_core::{Result, Tensor};
use candle_flash_attn::*;

use super::{Calls, ONE_LAUNCH, Op, at_most};
use crate::case::Case;
use crate::compare::Bound;
use crate::values::Domain;

/// Arguments of a function call, read from a case by name.
#[derive(Clone, Copy)]
struct Arguments<'a> {
    case: &'a Case,
    tensors: &'a [Tensor],
}

impl<'a> Arguments<'a> {
    fn tensor(&self, name: &str) -> Option<&'a Tensor> {
        let at = self.case.operands.iter().position(|operand| operand.name == name)?;
        Some(&self.tensors[at])
    }

    fn operand(&self, name: &str) -> &'a Tensor {
        self.tensor(name).unwrap_or_else(|| panic!("`{}` has no operand {name}", self.case))
    }

    fn q(&self) -> &'a Tensor {
        self.operand("q")
    }

    fn k(&self) -> &'a Tensor {
        self.operand("k")
    }

    fn v(&self) -> &'a Tensor {
        self.operand("v")
    }

    fn slope(&self) -> &'a Tensor {
        self.operand("slopes")
    }

    fn slopes(&self) -> Option<&'a Tensor> {
        self.tensor("slopes")
    }

    fn starts(&self) -> &'a Tensor {
        self.operand("starts")
    }

    fn key_starts(&self) -> &'a Tensor {
        self.operand("key_starts")
    }

    fn table(&self) -> &'a Tensor {
        self.operand("table")
    }

    fn ranges(&self) -> Option<&'a Tensor> {
        self.tensor("ranges")
    }

    fn most_queries(&self) -> usize {
        self.case.sizes("most")[0]
    }

    fn most_keys(&self) -> usize {
        self.case.sizes("most")[1]
    }

    fn page(&self) -> usize {
        self.case.size("page")
    }

    fn scale(&self) -> f32 {
        self.case.number("scale") as f32
    }

    fn causal(&self) -> bool {
        self.right() == Some(0)
    }

    fn left(&self) -> Option<usize> {
        self.side(0)
    }

    fn right(&self) -> Option<usize> {
        self.side(1)
    }

    /// Returns the window size on one side; `None` if it is unlimited, which the case encodes as a negative
    /// number.
    fn side(&self, side: usize) -> Option<usize> {
        let size = self.case.numbers("window")[side];
        (size >= 0.0).then_some(size as usize)
    }

    fn softcap(&self) -> f32 {
        self.case.number("softcap") as f32
    }

    fn cap(&self) -> Option<f32> {
        Some(self.softcap()).filter(|cap| *cap != 0.0)
    }
}

/// Converts a function's result to one tensor: statistics become an additional column.
trait JoinResult {
    fn joined(self) -> Result<Tensor>;
}

impl JoinResult for Result<Tensor> {
    fn joined(self) -> Result<Tensor> {
        self
    }
}

impl JoinResult for Result<(Tensor, Tensor)> {
    fn joined(self) -> Result<Tensor> {
        let (out, statistics) = self?;
        let last = out.rank() - 1;
        let column = statistics.transpose(last - 2, last - 1)?.unsqueeze(last)?;
        Tensor::cat(&[&out, &column.to_dtype(out.dtype())?], last)
    }
}

struct Function {
    name: &'static str,
    takes: &'static [&'static str],
    call: fn(Arguments) -> Result<Tensor>,
}

impl Function {
    fn takes(&self, argument: &str) -> bool {
        self.takes.contains(&argument)
    }

    /// Returns true if the function also returns the log-sum-exp of each row.
    fn statistics(&self) -> bool {
        self.name.ends_with("_with_statistics")
    }
}

/// Builds the table of functions with their argument names in order.
macro_rules! functions {
    ($($name:ident($($argument:ident)*);)*) => {
        &[$(Function {
            name: stringify!($name),
            takes: &[$(stringify!($argument)),*],
            call: |arguments| $name($(arguments.$argument()),*).joined(),
        }),*]
    };
}

static FUNCTIONS: &[Function] = functions! {
    flash_attn(q k v scale causal);
    flash_attn_windowed(q k v scale left right);
    flash_attn_alibi(q k v slope scale causal);
    flash_attn_alibi_windowed(q k v slope scale left right);
    flash_attn_alibi_windowed_softcap(q k v slopes scale left right softcap);
    flash_attn_with_statistics(q k v slopes scale left right cap);
    flash_attn_varlen(q k v starts key_starts most_queries most_keys scale causal);
    flash_attn_varlen_windowed(q k v starts key_starts most_queries most_keys scale left right);
    flash_attn_varlen_alibi(q k v slope starts key_starts most_queries most_keys scale causal);
    flash_attn_varlen_alibi_windowed(q k v slope starts key_starts most_queries most_keys scale left right);
    flash_attn_varlen_alibi_windowed_softcap(
        q k v slopes starts key_starts most_queries most_keys scale left right softcap
    );
    flash_attn_varlen_with_statistics(q k v slopes starts key_starts most_queries most_keys scale left right cap);
    flash_attn_varlen_paged_windowed(
        q k v starts key_starts table ranges most_queries most_keys scale left right page cap
    );
};

pub fn ops() -> Vec<Op> {
    FUNCTIONS.iter().map(op).collect()
}

fn op(function: &'static Function) -> Op {
    Op::new(
        function.name,
        example(function),
        |c| plan::plan(c, function),
        |case, tensors| {
            let arguments = Arguments { case, tensors };
            if arguments.q().device().is_rocm() {
                return (function.call)(arguments);
            }
            refusals::check(arguments)?;
            formula::result(arguments, function.statistics())?.to_dtype(arguments.q().dtype())
        },
    )
    .on(domain)
    .with_reference(|case, tensors| formula::result(Arguments { case, tensors }, function.statistics()))
    .within(
        Bound::ulps(0.0)
            .and_steps(|case, tensors| formula::allowed(Arguments { case, tensors }, function.statistics())),
    )
    // Statistics are cast and joined to the result, and rows that belong to no sequence are filled with
    // zeros.
    .calling(match (function.statistics(), function.takes("starts")) {
        (true, sequences) => Calls { copies: if sequences { 2 } else { 0 }, ..at_most(5) },
        _ => ONE_LAUNCH,
    })
}

/// Returns an example with two heads of 16 columns that share a key head.
fn example(function: &Function) -> String {
    let params = "scale=[0.25] window=[-1,0] softcap=[0]";
    let operands = match (function.takes("table"), function.takes("starts")) {
        (true, _) => "page=[16] q=5x2x16 k=3x16x1x16 v=3x16x1x16 table=2x2@u32",
        (_, true) => "q=5x2x16 k=9x1x16 v=9x1x16",
        _ => "q=2x5x2x16 k=2x7x1x16 v=2x7x1x16",
    };
    let sequences = "starts=[0,2,5] key_starts=[0,4,9] most=[3,5] starts=3@u32 key_starts=3@u32";
    let sequences = if function.takes("starts") { sequences } else { "" };
    let slopes = if function.takes("slope") { "slopes=2@f32" } else { "" };
    format!("{params} {operands} {sequences} {slopes}")
}

fn domain(case: &Case, operand: usize) -> Domain {
    let operand = &case.operands[operand];
    let has_ranges = case.operands.iter().any(|operand| operand.name == "ranges");
    match operand.name.as_str() {
        name @ ("starts" | "key_starts") => {
            Domain::Listed(case.numbers(name).iter().map(|start| *start as i64).collect())
        }
        // With ranges it is unspecified which invisible pages are read, so all pages must exist.
        "table" if has_ranges => Domain::Listed((0..case.dims(1)[0] as i64).rev().collect()),
        "table" => Domain::Index(case.dims(1)[0]),
        "ranges" => Domain::Index(100),
        "slopes" => Domain::Finite(1.0),
        _ => Domain::Finite(2.0),
    }
}
