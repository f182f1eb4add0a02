//! Table of the crate's functions: the cases that each supports, and how to call it.
use candle::{Result, Tensor};
use candle_flash_attn::*;

use crate::case::{Case, Form, Inputs};

type Made = Result<(Tensor, Option<Tensor>)>;

pub struct Function {
    pub name: &'static str,
    pub pages: bool,
    dense: bool,
    /// Support of ALiBi slopes.
    slopes: Slopes,
    /// True if it takes any window, false if only a causal mask.
    windows: bool,
    softcap: bool,
    sinks: bool,
    pub call: fn(&Case, &Inputs) -> Made,
}

#[derive(Clone, Copy, PartialEq)]
enum Slopes {
    Never,
    Always,
    Either,
}

impl Function {
    pub fn supports(&self, case: &Case) -> bool {
        let pages = matches!(case.form, Form::Pages(_));
        let slopes = match self.slopes {
            Slopes::Never => !case.alibi,
            Slopes::Always => case.alibi,
            Slopes::Either => true,
        };
        (pages, case.form == Form::Dense) == (self.pages, self.dense)
            && slopes
            && (self.windows || matches!(case.window, (None, None | Some(0))))
            && (self.softcap || case.softcap.is_none())
            && (self.pages && !self.sinks || case.ranges.is_empty())
            && self.sinks == case.sinks
    }
}

const fn dense(name: &'static str, slopes: Slopes, call: fn(&Case, &Inputs) -> Made) -> Function {
    Function { name, pages: false, dense: true, slopes, windows: false, softcap: false, sinks: false, call }
}

const fn sequences(name: &'static str, slopes: Slopes, call: fn(&Case, &Inputs) -> Made) -> Function {
    Function { dense: false, ..dense(name, slopes, call) }
}

const fn windowed(function: Function) -> Function {
    Function { windows: true, ..function }
}

const fn with_sinks(function: Function) -> Function {
    Function { sinks: true, ..capped(function) }
}

const fn capped(function: Function) -> Function {
    Function { softcap: true, ..windowed(function) }
}

fn one(made: Result<Tensor>) -> Made {
    Ok((made?, None))
}

fn both(made: Result<(Tensor, Tensor)>) -> Made {
    made.map(|(out, statistics)| (out, Some(statistics)))
}

fn slopes(inputs: &Inputs) -> &Tensor {
    inputs.slopes.as_ref().expect("a case with slopes")
}

/// Calls a function of sequences with the start offsets and the maximum numbers of queries and keys.
macro_rules! of_sequences {
    ($function:ident($($before:expr),*; $($after:expr),*), $case:ident, $inputs:ident) => {{
        let ([starts, key_starts], [queries, keys]) = (&$inputs.starts, $case.most());
        let (q, k, v) = (&$inputs.q, &$inputs.k, &$inputs.v);
        $function(q, k, v, $($before,)* starts, key_starts, queries, keys, $case.scale(), $($after),*)
    }};
}

#[rustfmt::skip]
pub const FUNCTIONS: [Function; 15] = [
    dense("flash_attn", Slopes::Never, |c, i| {
        one(flash_attn(&i.q, &i.k, &i.v, c.scale(), c.causal()))
    }),
    windowed(dense("flash_attn_windowed", Slopes::Never, |c, i| {
        one(flash_attn_windowed(&i.q, &i.k, &i.v, c.scale(), c.window.0, c.window.1))
    })),
    dense("flash_attn_alibi", Slopes::Always, |c, i| {
        one(flash_attn_alibi(&i.q, &i.k, &i.v, slopes(i), c.scale(), c.causal()))
    }),
    windowed(dense("flash_attn_alibi_windowed", Slopes::Always, |c, i| {
        one(flash_attn_alibi_windowed(&i.q, &i.k, &i.v, slopes(i), c.scale(), c.window.0, c.window.1))
    })),
    capped(dense("flash_attn_alibi_windowed_softcap", Slopes::Either, |c, i| {
        let (slopes, (left, right), cap) = (i.slopes.as_ref(), c.window, c.softcap.unwrap_or(0.0));
        one(flash_attn_alibi_windowed_softcap(&i.q, &i.k, &i.v, slopes, c.scale(), left, right, cap))
    })),
    capped(dense("flash_attn_with_statistics", Slopes::Either, |c, i| {
        let (slopes, (left, right)) = (i.slopes.as_ref(), c.window);
        both(flash_attn_with_statistics(&i.q, &i.k, &i.v, slopes, c.scale(), left, right, c.softcap))
    })),
    sequences("flash_attn_varlen", Slopes::Never, |c, i| {
        one(of_sequences!(flash_attn_varlen(; c.causal()), c, i))
    }),
    windowed(sequences("flash_attn_varlen_windowed", Slopes::Never, |c, i| {
        one(of_sequences!(flash_attn_varlen_windowed(; c.window.0, c.window.1), c, i))
    })),
    sequences("flash_attn_varlen_alibi", Slopes::Always, |c, i| {
        one(of_sequences!(flash_attn_varlen_alibi(slopes(i); c.causal()), c, i))
    }),
    windowed(sequences("flash_attn_varlen_alibi_windowed", Slopes::Always, |c, i| {
        one(of_sequences!(flash_attn_varlen_alibi_windowed(slopes(i); c.window.0, c.window.1), c, i))
    })),
    capped(sequences("flash_attn_varlen_alibi_windowed_softcap", Slopes::Either, |c, i| {
        let (slopes, (left, right), cap) = (i.slopes.as_ref(), c.window, c.softcap.unwrap_or(0.0));
        one(of_sequences!(flash_attn_varlen_alibi_windowed_softcap(slopes; left, right, cap), c, i))
    })),
    capped(sequences("flash_attn_varlen_with_statistics", Slopes::Either, |c, i| {
        let (slopes, (left, right)) = (i.slopes.as_ref(), c.window);
        both(of_sequences!(flash_attn_varlen_with_statistics(slopes; left, right, c.softcap), c, i))
    })),
    Function {
        pages: true,
        ..capped(sequences("flash_attn_varlen_paged_windowed", Slopes::Never, |c, i| {
            let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
            let (Form::Pages(page), Some(table)) = (c.form, &i.table) else { panic!("{c:?} has no pages") };
            one(flash_attn_varlen_paged_windowed(
                &i.q, &i.k, &i.v, starts, key_starts, table, i.ranges.as_ref(), queries, keys, c.scale(),
                left, right, page, c.softcap,
            ))
        }))
    },
    with_sinks(sequences("flash_attn_varlen_with_sinks", Slopes::Never, |c, i| {
        let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
        one(flash_attn_varlen_with_sinks(
            &i.q, &i.k, &i.v, &i.sinks, starts, key_starts, None, queries, keys, c.scale(), left, right, 0, c.softcap,
        ))
    })),
    Function {
        pages: true,
        ..with_sinks(sequences("flash_attn_varlen_with_sinks, paged", Slopes::Never, |c, i| {
            let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
            let Form::Pages(page) = c.form else { panic!("{c:?} has no pages") };
            one(flash_attn_varlen_with_sinks(
                &i.q, &i.k, &i.v, &i.sinks, starts, key_starts, i.table.as_ref(), queries, keys, c.scale(),
                left, right, page, c.softcap,
            ))
        }))
    },
];
