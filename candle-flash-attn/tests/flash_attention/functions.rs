//! Every function of the crate: what it can say, and how it is called.
use candle::{Result, Tensor};
use candle_flash_attn::*;

use crate::case::{Case, Form, Inputs};

type Made = Result<(Tensor, Option<Tensor>)>;

pub struct Function {
    pub name: &'static str,
    pub pages: bool,
    dense: bool,
    /// Whether it takes slopes: never, always, or as one likes.
    slopes: Slopes,
    /// Any window, or a causal mask at most.
    windows: bool,
    softcap: bool,
    pub call: fn(&Case, &Inputs) -> Made,
}

#[derive(Clone, Copy, PartialEq)]
enum Slopes {
    Never,
    Always,
    Either,
}

impl Function {
    pub fn says(&self, case: &Case) -> bool {
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
            && (self.pages || case.ranges.is_empty())
    }
}

const fn dense(name: &'static str, slopes: Slopes, call: fn(&Case, &Inputs) -> Made) -> Function {
    Function { name, pages: false, dense: true, slopes, windows: false, softcap: false, call }
}

const fn sequences(name: &'static str, slopes: Slopes, call: fn(&Case, &Inputs) -> Made) -> Function {
    Function { dense: false, ..dense(name, slopes, call) }
}

const fn windowed(function: Function) -> Function {
    Function { windows: true, ..function }
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

pub const FUNCTIONS: [Function; 13] = [
    dense("flash_attn", Slopes::Never, |c, i| {
        one(flash_attn(&i.q, &i.k, &i.v, c.scale(), c.window.1.is_some()))
    }),
    windowed(dense("flash_attn_windowed", Slopes::Never, |c, i| {
        one(flash_attn_windowed(&i.q, &i.k, &i.v, c.scale(), c.window.0, c.window.1))
    })),
    dense("flash_attn_alibi", Slopes::Always, |c, i| {
        one(flash_attn_alibi(&i.q, &i.k, &i.v, slopes(i), c.scale(), c.window.1.is_some()))
    }),
    windowed(dense("flash_attn_alibi_windowed", Slopes::Always, |c, i| {
        one(flash_attn_alibi_windowed(&i.q, &i.k, &i.v, slopes(i), c.scale(), c.window.0, c.window.1))
    })),
    capped(dense("flash_attn_alibi_windowed_softcap", Slopes::Either, |c, i| {
        let cap = c.softcap.unwrap_or(0.0);
        one(flash_attn_alibi_windowed_softcap(
            &i.q,
            &i.k,
            &i.v,
            i.slopes.as_ref(),
            c.scale(),
            c.window.0,
            c.window.1,
            cap,
        ))
    })),
    capped(dense("flash_attn_with_statistics", Slopes::Either, |c, i| {
        let slopes = i.slopes.as_ref();
        both(flash_attn_with_statistics(
            &i.q,
            &i.k,
            &i.v,
            slopes,
            c.scale(),
            c.window.0,
            c.window.1,
            c.softcap,
        ))
    })),
    sequences("flash_attn_varlen", Slopes::Never, |c, i| {
        let ([starts, key_starts], [queries, keys]) = (&i.starts, c.most());
        one(flash_attn_varlen(
            &i.q,
            &i.k,
            &i.v,
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            c.window.1.is_some(),
        ))
    }),
    windowed(sequences("flash_attn_varlen_windowed", Slopes::Never, |c, i| {
        let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
        one(flash_attn_varlen_windowed(
            &i.q,
            &i.k,
            &i.v,
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            left,
            right,
        ))
    })),
    sequences("flash_attn_varlen_alibi", Slopes::Always, |c, i| {
        let ([starts, key_starts], [queries, keys]) = (&i.starts, c.most());
        let causal = c.window.1.is_some();
        one(flash_attn_varlen_alibi(
            &i.q,
            &i.k,
            &i.v,
            slopes(i),
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            causal,
        ))
    }),
    windowed(sequences("flash_attn_varlen_alibi_windowed", Slopes::Always, |c, i| {
        let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
        one(flash_attn_varlen_alibi_windowed(
            &i.q,
            &i.k,
            &i.v,
            slopes(i),
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            left,
            right,
        ))
    })),
    capped(sequences("flash_attn_varlen_alibi_windowed_softcap", Slopes::Either, |c, i| {
        let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
        one(flash_attn_varlen_alibi_windowed_softcap(
            &i.q,
            &i.k,
            &i.v,
            i.slopes.as_ref(),
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            left,
            right,
            c.softcap.unwrap_or(0.0),
        ))
    })),
    capped(sequences("flash_attn_varlen_with_statistics", Slopes::Either, |c, i| {
        let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
        both(flash_attn_varlen_with_statistics(
            &i.q,
            &i.k,
            &i.v,
            i.slopes.as_ref(),
            starts,
            key_starts,
            queries,
            keys,
            c.scale(),
            left,
            right,
            c.softcap,
        ))
    })),
    Function {
        pages: true,
        ..capped(sequences("flash_attn_varlen_paged_windowed", Slopes::Never, |c, i| {
            let ([starts, key_starts], [queries, keys], (left, right)) = (&i.starts, c.most(), c.window);
            let (Form::Pages(page), Some(table)) = (c.form, &i.table) else { panic!("{c:?} has no pages") };
            one(flash_attn_varlen_paged_windowed(
                &i.q,
                &i.k,
                &i.v,
                starts,
                key_starts,
                table,
                i.ranges.as_ref(),
                queries,
                keys,
                c.scale(),
                left,
                right,
                page,
                c.softcap,
            ))
        }))
    },
];
