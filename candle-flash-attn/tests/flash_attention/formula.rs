//! The formula in plain loops: in f64 as the reference, and in f32 to measure its rounding error.
use crate::case::{Case, Host};

/// Number type of the loops.
pub trait Real: Copy + PartialOrd + std::iter::Sum {
    fn from(x: f32) -> Self;
    fn wide(self) -> f64;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn exp(self) -> Self;
    fn tanh(self) -> Self;
    fn ln(self) -> Self;
}

macro_rules! real {
    ($of:ident) => {
        impl Real for $of {
            fn from(x: f32) -> Self {
                x as $of
            }
            fn wide(self) -> f64 {
                self as f64
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn minus(self, other: Self) -> Self {
                self - other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn over(self, other: Self) -> Self {
                self / other
            }
            fn exp(self) -> Self {
                <$of>::exp(self)
            }
            fn tanh(self) -> Self {
                <$of>::tanh(self)
            }
            fn ln(self) -> Self {
                <$of>::ln(self)
            }
        }
    };
}
real!(f32);
real!(f64);

/// Results (all queries, heads, value width) and statistics (heads, all queries).
pub struct AttentionOutput {
    pub out: Vec<f64>,
    pub statistics: Vec<f64>,
}

pub fn attention<R: Real>(case: &Case, host: &Host) -> AttentionOutput {
    let ((heads, key_heads), (width, value_width)) = (case.heads, case.widths);
    let total: usize = case.sequences.iter().map(|(queries, _)| queries).sum();
    let mut made = AttentionOutput {
        out: vec![0.0; total * heads * value_width],
        statistics: vec![f64::NEG_INFINITY; heads * total],
    };
    let real = |values: &[f32]| values.iter().map(|x| R::from(*x)).collect::<Vec<R>>();
    let (q, k, v) = (real(&host.q), real(&host.k), real(&host.v));
    let (mut first_query, mut first_key) = (0, 0);
    for (sequence, &(queries, keys)) in case.sequences.iter().enumerate() {
        for (query, head) in (0..queries).flat_map(|query| (0..heads).map(move |head| (query, head))) {
            let position = query as i64 + keys as i64 - queries as i64;
            let row = (first_query + query) * heads + head;
            let key_row = |key: usize| (first_key + key) * key_heads + head / (heads / key_heads);
            let score = |key: usize| {
                let products = q[row * width..][..width]
                    .iter()
                    .zip(&k[key_row(key) * width..][..width])
                    .map(|(q, k)| q.times(*k));
                let mut score = products.sum::<R>().times(R::from(case.scale()));
                if let Some(cap) = case.softcap.filter(|cap| *cap > 0.0).map(R::from) {
                    score = score.over(cap).tanh().times(cap);
                }
                let distance = R::from((position - key as i64).abs() as f32);
                score.minus(R::from(host.slopes.get(head).copied().unwrap_or(0.0)).times(distance))
            };
            let seen: Vec<(usize, R)> = (0..keys)
                .filter(|key| case.sees(sequence, position, *key as i64))
                .map(|key| (key, score(key)))
                .collect();
            let Some(top) = seen.iter().map(|(_, score)| *score).reduce(|a, b| if a < b { b } else { a })
            else {
                continue;
            };
            let weights: Vec<R> = seen.iter().map(|(_, score)| score.minus(top).exp()).collect();
            let sum = weights.iter().copied().sum::<R>();
            // A sink is a key with a value of zero.
            let sink = host.sinks.get(head).map(|sink| R::from(*sink).minus(top).exp());
            let sum = sink.map_or(sum, |sink| sum.plus(sink));
            let mut out = vec![R::from(0.0); value_width];
            for ((key, _), weight) in seen.iter().zip(&weights) {
                let weight = weight.over(sum);
                for (out, v) in out.iter_mut().zip(&v[key_row(*key) * value_width..][..value_width]) {
                    *out = out.plus(weight.times(*v));
                }
            }
            for (to, out) in made.out[row * value_width..].iter_mut().zip(out) {
                *to = out.wide();
            }
            made.statistics[head * total + first_query + query] = sum.ln().plus(top).wide();
        }
        (first_query, first_key) = (first_query + queries, first_key + keys);
    }
    made
}
