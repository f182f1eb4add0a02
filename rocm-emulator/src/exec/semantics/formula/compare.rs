//! Compares: every relation of every type, by the pieces of the name.
use super::{Act, Args, Formula, Operation, Out};
use crate::exec::semantics::kind::Signature;
use crate::exec::semantics::number::{Format, Number};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::HashMap;

/// A relation's names, and when it holds.
type Relation = (&'static str, fn(&Args) -> bool);

/// Relations of floats; no number is unordered.
const FLOAT: &[Relation] = &[
    ("f", |_| false),
    ("lt", |x| order(x) == Some(Less)),
    ("eq", |x| order(x) == Some(Equal)),
    ("le", |x| matches!(order(x), Some(Less | Equal))),
    ("gt", |x| order(x) == Some(Greater)),
    ("lg", |x| matches!(order(x), Some(Less | Greater))),
    ("ge", |x| matches!(order(x), Some(Greater | Equal))),
    ("o", |x| order(x).is_some()),
    ("u", |x| order(x).is_none()),
    ("nge", |x| !matches!(order(x), Some(Greater | Equal))),
    ("nlg", |x| !matches!(order(x), Some(Less | Greater))),
    ("ngt", |x| order(x) != Some(Greater)),
    ("nle", |x| !matches!(order(x), Some(Less | Equal))),
    ("neq", |x| order(x) != Some(Equal)),
    ("nlt", |x| order(x) != Some(Less)),
    ("t tru", |_| true),
];

const INTEGER: &[Relation] = &[
    ("f", |_| false),
    ("lt", |x| x.i(0) < x.i(1)),
    ("eq", |x| x.i(0) == x.i(1)),
    ("le", |x| x.i(0) <= x.i(1)),
    ("gt", |x| x.i(0) > x.i(1)),
    ("ne lg", |x| x.i(0) != x.i(1)),
    ("ge", |x| x.i(0) >= x.i(1)),
    ("t", |_| true),
];

fn order(x: &Args) -> Option<std::cmp::Ordering> {
    x.n(0).order(&x.n(1))
}

/// The bit of v_cmp_class that stands for a value.
fn class(format: Format, bits: u64) -> u32 {
    let negative = format.is_negative(bits);
    match format.read(bits) {
        Number::Nan { signalling: true } => 0,
        Number::Nan { signalling: false } => 1,
        Number::Infinite { negative: true } => 2,
        Number::Infinite { negative: false } => 9,
        Number::Finite(value) => match (value.is_zero(), format.is_denormal(bits), negative) {
            (true, _, true) => 5,
            (true, _, false) => 6,
            (_, true, true) => 4,
            (_, true, false) => 7,
            (_, _, true) => 3,
            (_, _, false) => 8,
        },
    }
}

fn is_of_class(x: &Args) -> Out {
    Out::bits(x.u(1) >> class(x.format(0), x.u(0)) & 1)
}

/// How a relation is computed, as the vector and as the scalar compares give it.
macro_rules! outcomes {
    ($($at:literal),*) => {
        const FLOAT_LANES: &[Operation] = &[$(|x| Out::bits(FLOAT[$at].1(x).into())),*];
        const FLOAT_SCALAR: &[Operation] = &[$(|x| Out::scc(0, FLOAT[$at].1(x))),*];
        const INTEGER_LANES: &[Operation] = &[$(|x| Out::bits(INTEGER[$at % 8].1(x).into())),*];
        const INTEGER_SCALAR: &[Operation] = &[$(|x| Out::scc(0, INTEGER[$at % 8].1(x))),*];
    };
}
outcomes!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

pub fn add(formulas: &mut HashMap<&'static str, Formula>) {
    let mut insert = |names: &[String], signature: &str, operation: Operation| {
        for name in names {
            // A handful of names, for the length of the test.
            let name: &'static str = name.clone().leak();
            let signature_of = Signature::parse(signature);
            let text: &'static str = signature.to_string().leak();
            let formula =
                Formula { is_flow: false, act: Act::Each(text, operation), signature: Some(signature_of) };
            assert!(formulas.insert(name, formula).is_none(), "two formulas for {name}");
        }
    };
    for (types, relations, lanes, scalar) in [
        (&["f16", "f32", "f64"][..], FLOAT, FLOAT_LANES, FLOAT_SCALAR),
        (&["i16", "u16", "i32", "u32", "i64", "u64"][..], INTEGER, INTEGER_LANES, INTEGER_SCALAR),
    ] {
        for kind in types {
            for (at, (names, _)) in relations.iter().enumerate() {
                let vector = names.split(' ').flat_map(|relation| {
                    [format!("v_cmp_{relation}_{kind}"), format!("v_cmpx_{relation}_{kind}")]
                });
                insert(&vector.collect::<Vec<_>>(), &format!("{kind} {kind} -> mask"), lanes[at]);
                let plain = names.split(' ').map(|relation| format!("s_cmp_{relation}_{kind}"));
                insert(&plain.collect::<Vec<_>>(), &format!("{kind} {kind} -> none"), scalar[at]);
                if kind.ends_with("32") && !kind.starts_with('f') {
                    let immediate = names.split(' ').map(|relation| format!("s_cmpk_{relation}_{kind}"));
                    insert(&immediate.collect::<Vec<_>>(), &format!("{kind} imm -> none"), scalar[at]);
                }
            }
        }
    }
    for (kind, classes) in [("16", "u16"), ("32", "u32"), ("64", "u32")] {
        let names = [format!("v_cmp_class_f{kind}"), format!("v_cmpx_class_f{kind}")];
        insert(&names, &format!("r{kind} {classes} -> mask"), is_of_class);
    }
}
