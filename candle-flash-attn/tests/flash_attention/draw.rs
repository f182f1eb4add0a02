//! Random cases over all parameters. `CANDLE_FLASH_ATTN_CASES` and `CANDLE_FLASH_ATTN_SEED` set their number and seed.
use rand::seq::IndexedRandom;
use rand::{rngs::StdRng, Rng, SeedableRng};

use crate::case::{Case, Form, View};
use crate::{DTYPES, LENGTHS};

/// Default number of cases, which takes seconds on the software GPU.
const CASES: usize = 300;
/// Maximum number of multiplications per case, a fraction of a second on the software GPU.
const MOST_PRODUCTS: usize = 20_000_000;
const WIDTHS: [usize; 12] = [32, 40, 64, 64, 72, 96, 128, 128, 160, 192, 256, 512];

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

pub fn cases() -> impl Iterator<Item = Case> {
    let seed = number("CANDLE_FLASH_ATTN_SEED", 1) as u64;
    let count = number("CANDLE_FLASH_ATTN_CASES", CASES) as u64;
    (0..count).map(move |i| case(seed * 1_000_000 + i))
}

fn length(rng: &mut StdRng) -> usize {
    match rng.random_ratio(2, 3) {
        true => *LENGTHS.choose(rng).expect("lengths"),
        false => rng.random_range(1..=600),
    }
}

/// Returns the case of a seed, drawn repeatedly until it is small enough.
fn case(seed: u64) -> Case {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let case = draw(&mut rng, seed);
        if case.products() <= MOST_PRODUCTS {
            return case;
        }
    }
}

fn draw(rng: &mut StdRng, seed: u64) -> Case {
    let form = [Form::Dense, Form::Sequences, Form::Pages(*[16, 32, 48, 256].choose(rng).expect("pages"))];
    let form = *form.choose(rng).expect("forms");
    let count = rng.random_range(1..=3);
    let one = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => (rng.random_range(1..=4), length(rng)),
        1 => (length(rng), length(rng)),
        2 if form != Form::Dense => *[(0, 9), (5, 0), (0, 0)].choose(rng).expect("lengths"),
        _ => {
            let length = length(rng);
            (length, length)
        }
    };
    let sequences = match form {
        Form::Dense => vec![one(rng); count],
        _ => (0..count).map(|_| one(rng)).collect::<Vec<_>>(),
    };
    let key_heads = rng.random_range(1..=2);
    let heads = (key_heads * [1, 2, 4, 8].choose(rng).expect("groups"), key_heads);
    let width = *WIDTHS.choose(rng).expect("widths");
    let value_width = if rng.random_ratio(1, 4) { *WIDTHS.choose(rng).expect("widths") } else { width };
    let side = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 | 1 => None,
        2 => Some(0),
        _ => Some(rng.random_range(1..300)),
    };
    let (left, right) = (side(rng), side(rng));
    let softcap = rng.random_ratio(1, 4).then(|| rng.random_range(0.5..20.0));
    let pages = matches!(form, Form::Pages(_));
    let alibi = !pages && rng.random_ratio(1, 4);
    let range = |rng: &mut StdRng| {
        let from = rng.random_range(0..300);
        (from, from + rng.random_range(0..100))
    };
    let ranges = match pages && rng.random_ratio(1, 3) {
        true => sequences.iter().map(|_| vec![range(rng), range(rng)]).collect(),
        false => Vec::new(),
    };
    let fusable = !pages && width == value_width && sequences.iter().all(|(queries, keys)| queries == keys);
    let view = *[View::Plain, View::Heads, View::Offset, View::Fused].choose(rng).expect("views");
    let view = if view == View::Fused && !fusable { View::Plain } else { view };
    let dtype = *DTYPES.choose(rng).expect("dtypes");
    let (window, widths, function) = ((left, right), (width, value_width), rng.random_range(0..12));
    let sinks = form != Form::Dense && !alibi && ranges.is_empty() && rng.random_ratio(1, 5);
    Case {
        dtype,
        form,
        sequences,
        heads,
        widths,
        window,
        softcap,
        alibi,
        sinks,
        ranges,
        view,
        function,
        seed,
    }
}
