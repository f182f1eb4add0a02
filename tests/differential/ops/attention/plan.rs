//! Generates random sequences, widths, windows and layouts, sometimes with one invalid argument.
use candle_core::DType;

use super::Function;
use crate::case::{Operand, View};
use crate::ops::Plan;
use crate::strategy::Choices;

/// Lengths around the sizes of tiles and of a workgroup's part of the keys.
const LENGTHS: [usize; 18] = [1, 2, 3, 5, 16, 15, 17, 31, 33, 64, 65, 127, 129, 0, 200, 257, 300, 600];
const WIDTHS: [usize; 12] = [8, 16, 64, 40, 72, 128, 64, 96, 160, 128, 256, 512];

/// Maximum number of multiplications of a case, so that the software GPU can run thousands of cases.
const MAX_PRODUCTS: usize = 1 << 21;

pub fn plan(c: &mut Choices, function: &Function) -> Plan {
    let invalidate = match c.pick(24) {
        21 if !function.statistics() => Some(c.one_of(&INVALID_STARTS)),
        22.. => Some(c.one_of(&INVALID)),
        _ => None,
    };
    let key_heads = c.between(1, 2);
    let heads = key_heads * c.one_of(&[1, 2, 3, 8]);
    let width = c.one_of(&WIDTHS);
    let value_width = if c.seldom(4) { c.one_of(&WIDTHS) } else { width };
    let varlen = function.takes("starts");
    let count = c.between(1, if varlen { 3 } else { 2 });
    let different = if varlen { count } else { 1 };
    let mut lengths: Vec<(usize, usize)> = (0..different).map(|_| one_sequence(c)).collect();
    let each = count / different * heads * (width + value_width);
    while lengths.iter().map(|(queries, keys)| queries * keys).sum::<usize>() * each > MAX_PRODUCTS {
        lengths.iter_mut().for_each(|(queries, keys)| {
            let longer = if queries < keys { keys } else { queries };
            *longer /= 2;
        });
    }
    let windowed = function.takes("left");
    let sides = [0, 1].map(|side| match c.pick(4) {
        0 | 1 => -1.0,
        2 => 0.0,
        _ if windowed => c.between(1, 80) as f64,
        _ => (side as f64) - 1.0,
    });
    let left = if windowed { sides[0] } else { -1.0 };
    let usual = (width as f64).sqrt().recip();
    let scale = c.one_of(&[usual, usual, usual, 0.05, 0.0, -0.125]);
    let capped = function.takes("softcap") || function.takes("cap");
    let softcap = if capped { c.one_of(&[0.0, 1.5, 20.0, -1.0]) } else { 0.0 };
    let mut plan = Plan::default()
        .param("scale", &[scale])
        .param("window", &[left, sides[1]])
        .param("softcap", &[softcap]);

    let total = |of: fn(&(usize, usize)) -> usize| lengths.iter().map(of).sum::<usize>();
    let (queries, keys) = (total(|s| s.0), total(|s| s.1));
    let page = function.takes("table").then(|| c.one_of(&[16, 32, 48]));
    let outer = if varlen { vec![] } else { vec![count] };
    let key_rows = page.map_or([&outer[..], &[keys]].concat(), |page| vec![c.between(1, 5), page]);
    plan.operands = vec![
        operand_layout(c, "q", &[&outer[..], &[queries, heads, width]].concat()),
        operand_layout(c, "k", &[&key_rows[..], &[key_heads, width]].concat()),
        operand_layout(c, "v", &[&key_rows[..], &[key_heads, value_width]].concat()),
    ];
    if function.takes("slope") || (function.takes("slopes") && c.pick(2) == 1) {
        plan.operands.push(c.mostly_dense("slopes", &[heads]).with_dtype(DType::F32));
    }
    if varlen {
        let mut most = Vec::new();
        let (of_queries, of_keys): (Vec<usize>, Vec<usize>) = lengths.iter().copied().unzip();
        for (name, of) in [("starts", of_queries), ("key_starts", of_keys)] {
            let ends = of.iter().scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            plan = plan.sizes(name, &[0].into_iter().chain(ends).collect::<Vec<_>>());
            plan.operands.push(Operand::new(name, &[count + 1]).with_dtype(DType::U32));
            most.push(of.iter().max().unwrap_or(&0) + c.one_of(&[0, 0, 0, 90]));
        }
        plan = plan.sizes("most", &most);
    }
    if let Some(page) = page {
        plan = plan.sizes("page", &[page]);
        let pages = lengths.iter().map(|(_, keys)| keys.div_ceil(page)).max().unwrap_or(0) + c.pick(2);
        let dtype = c.one_of(&[DType::U32, DType::I32]);
        let table = Operand::new("table", &[count, pages.max(1)]).with_dtype(dtype);
        // The rows may be part of a wider table.
        let views = if c.seldom(4) { vec![View::Narrowed { dim: 1, before: 0, after: 2 }] } else { vec![] };
        plan.operands.push(table.with_views(views));
        if c.seldom(3) {
            plan.operands.push(Operand::new("ranges", &[count, c.between(1, 3), 2]).with_dtype(DType::I32));
        }
    }
    invalidate.into_iter().for_each(|change| change(&mut plan));
    plan
}

/// Returns numbers of queries and keys: equal, few queries, or independent.
fn one_sequence(c: &mut Choices) -> (usize, usize) {
    let length = c.one_of(&LENGTHS);
    match c.pick(3) {
        0 => (length, length),
        1 => (c.between(1, 4), length),
        _ => (c.one_of(&LENGTHS), length),
    }
}

/// Returns an operand in a layout that models use: dense, heads before positions, part of a wider tensor, or
/// broadcast.
fn operand_layout(c: &mut Choices, name: &str, dims: &[usize]) -> Operand {
    let (head, last) = (dims.len() - 2, dims.len() - 1);
    let narrowed = |dim, before, after| View::Narrowed { dim, before, after };
    let views: [&[View]; 10] = [
        &[],
        &[],
        &[],
        &[],
        &[View::Transposed(head - 1, head)],
        &[narrowed(head, 1, 2)],
        &[narrowed(last, 3, 0)],
        &[narrowed(last, 8, 16)],
        &[View::Broadcast(head)],
        &[View::Broadcast(0)],
    ];
    Operand::new(name, dims).with_views(c.one_of(&views).to_vec())
}

fn change(plan: &mut Plan, name: &str, how: impl Fn(&mut Operand)) {
    plan.operands.iter_mut().filter(|operand| operand.name == name).for_each(how);
}

fn change_numbers(plan: &mut Plan, name: &str, how: impl Fn(&mut Vec<f64>)) {
    plan.params.iter_mut().filter(|(key, _)| key == name).for_each(|(_, numbers)| how(numbers));
}

fn last(operand: &mut Operand) -> &mut usize {
    operand.dims.last_mut().expect("an operand with dims")
}

/// Changes that make a case invalid. A change without effect on the case leaves it valid.
const INVALID: [fn(&mut Plan); 24] = [
    |p| change(p, "q", |q| q.dims.insert(0, 1)),
    |p| change(p, "k", |k| k.dims.insert(0, 1)),
    |p| {
        change(p, "v", |v| {
            v.dims.remove(0);
            v.views.clear();
        })
    },
    |p| change(p, "q", transpose_last),
    |p| change(p, "k", transpose_last),
    |p| change(p, "v", |v| v.views.push(View::Broadcast(v.dims.len() - 1))),
    |p| change(p, "q", |q| *last(q) += 8),
    |p| change(p, "k", |k| k.dims[0] += 1),
    |p| change(p, "v", |v| v.dims[0] += 1),
    |p| change(p, "k", |k| k.dtype = Some(DType::BF16)),
    |p| change(p, "v", |v| v.dtype = Some(DType::F32)),
    |p| ["q", "k"].iter().for_each(|name| change(p, name, |operand| *last(operand) += 4)),
    |p| ["q", "k"].iter().for_each(|name| change(p, name, |operand| *last(operand) = 520)),
    |p| change(p, "v", |v| *last(v) = 12),
    |p| {
        ["k", "v"].iter().for_each(|name| {
            change(p, name, |operand| {
                let head = operand.dims.len() - 2;
                operand.dims[head] += 2;
            })
        })
    },
    |p| change(p, "slopes", |slopes| *last(slopes) += 1),
    |p| change(p, "slopes", |slopes| slopes.dtype = Some(DType::F16)),
    |p| change(p, "starts", |starts| starts.views.push(View::Broadcast(0))),
    |p| change(p, "key_starts", |starts| *last(starts) += 1),
    |p| ["starts", "key_starts"].iter().for_each(|name| change(p, name, |starts| starts.dims[0] = 1)),
    |p| change_numbers(p, "page", |page| page[0] += 16.0),
    |p| change(p, "table", |table| table.dtype = Some(DType::I64)),
    |p| change(p, "table", |table| table.dims[0] += 1),
    |p| change(p, "ranges", |ranges| ranges.dtype = Some(DType::U32)),
];

/// Invalid sequence starts, which only the GPU can detect. Functions with statistics are excluded: the cast
/// of the unwritten statistics fails first.
const INVALID_STARTS: [fn(&mut Plan); 4] = [
    |p| change_numbers(p, "starts", |starts| *starts.last_mut().expect("an end") += 1.0),
    |p| change_numbers(p, "key_starts", |starts| *starts.last_mut().expect("an end") += 100.0),
    |p| change_numbers(p, "key_starts", |starts| starts[0] = starts[1] + 1.0),
    |p| change_numbers(p, "most", |most| most[0] = (most[0] - 1.0).max(1.0)),
];

fn transpose_last(operand: &mut Operand) {
    let last = operand.dims.len() - 1;
    operand.views.push(View::Transposed(last - 1, last));
}
