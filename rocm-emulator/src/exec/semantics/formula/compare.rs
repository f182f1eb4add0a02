//! Compares: every relation of every type, generated from the parts of the mnemonic.
use super::{Args, Eval, Formula, Operation, Out};
use crate::exec::semantics::kind::Signature;
use crate::exec::semantics::number::{Format, Number};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::HashMap;

/// Names of a relation, and its predicate.
type Relation = (&'static str, fn(&Args) -> bool);

/// Relations of floats, where NaN is unordered.
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

/// Returns the bit of v_cmp_class for a value's class.
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

/// Defines the operations of vector and scalar compares.
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
            // The number of names is small, and they live as long as the test.
            let name: &'static str = name.clone().leak();
            let signature_of = Signature::parse(signature);
            let text: &'static str = signature.to_string().leak();
            let formula =
                Formula { is_flow: false, eval: Eval::Each(text, operation), signature: Some(signature_of) };
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
