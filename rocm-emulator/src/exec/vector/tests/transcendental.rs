//! Tests of errors in units in the last place, compared with the host's f64 functions.
use super::*;

/// Returns the largest error of an instruction over `inputs` in ulp of f32. Infinities and NaN must match.
fn max_error(name: &'static str, inputs: impl Iterator<Item = f32>, exact: impl Fn(f64) -> f64) -> f64 {
    let inputs: Vec<f32> = inputs.collect();
    let mut max_error: f64 = 0.0;
    for baseline in [true, false] {
        BASELINE.set(baseline);
        let step = step(&inst(name));
        for chunk in inputs.chunks(32) {
            let mut wave = wave();
            for (lane, x) in chunk.iter().enumerate() {
                wave.vgpr[SOURCES[0] as usize].0[lane] = x.to_bits();
            }
            step.run(&mut wave);
            for (lane, x) in chunk.iter().enumerate() {
                let found = f64::from(f32::from_bits(wave.vgpr[DST as usize].0[lane]));
                let expected = exact((*x).into());
                let rounded = f64::from(expected as f32);
                if rounded.is_nan() || rounded.is_infinite() || rounded == 0.0 {
                    assert!(
                        found == rounded || (found.is_nan() && rounded.is_nan()),
                        "{name} of {x:e}: {found:e}"
                    );
                } else {
                    let ulp = 2f64.powi(expected.abs().log2().floor() as i32 - 23).max(2f64.powi(-149));
                    max_error = max_error.max((found - expected).abs() / ulp);
                }
            }
        }
    }
    BASELINE.set(false);
    max_error
}

/// Returns dense values of both signs with exponents in `low..high`.
fn sweep(low: i32, high: i32) -> impl Iterator<Item = f32> {
    let mut random = Random::new(31);
    (low..high).flat_map(move |e| {
        let mut values = Vec::new();
        for _ in 0..2000 {
            let bits = random.bits();
            let magnitude = (((e + 127) as u32) << 23) | bits as u32 & 0x7f_ffff;
            values.push(f32::from_bits(magnitude | (bits >> 32) as u32 & 0x8000_0000));
        }
        values.into_iter()
    })
}

fn flushed(x: f64) -> f64 {
    if x.abs() < f32::MIN_POSITIVE.into() { 0f64.copysign(x) } else { x }
}

const SPECIALS: [f32; 7] = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, -1.0];

#[test]
fn exponential() {
    let error = max_error("v_exp_f32", sweep(-30, 7).chain(SPECIALS), |x| flushed(x.exp2()));
    assert!(error < 0.51, "{error}");
    // The largest finite result, and underflow.
    assert!(
        max_error("v_exp_f32", [127.99999, 128.0, -126.0, -127.0, -300.0, 3e38].into_iter(), |x| flushed(
            x.exp2()
        )) < 0.51
    );
}

#[test]
fn logarithm() {
    let near_one = (0..20_000).map(|i| 1.0 + (i - 10_000) as f32 * f32::EPSILON / 2.0);
    let error = max_error("v_log_f32", sweep(-126, 128).chain(near_one).chain(SPECIALS), f64::log2);
    assert!(error < 0.51, "{error}");
    assert_eq!(
        max_error("v_log_f32", [f32::from_bits(1), -f32::from_bits(1)].into_iter(), |_| f64::NEG_INFINITY),
        0.0
    );
}

#[test]
fn reciprocals_and_roots() {
    for name in ["v_rcp_f32", "v_rcp_iflag_f32"] {
        let error = max_error(name, sweep(-126, 128).chain(SPECIALS), |x| flushed(1.0 / x));
        assert!(error <= 0.5, "{error}");
        let tiny = [f32::from_bits(1), -f32::from_bits(0x7f_ffff)];
        assert_eq!(max_error(name, tiny.into_iter(), |x| f64::INFINITY.copysign(x)), 0.0);
    }
    let error = max_error("v_rsq_f32", sweep(-126, 128).chain(SPECIALS), |x| 1.0 / x.sqrt());
    assert!(error < 0.51, "{error}");
    let denormals = (1..2000).map(f32::from_bits);
    let error = max_error("v_sqrt_f32", sweep(-126, 128).chain(SPECIALS).chain(denormals), f64::sqrt);
    assert!(error <= 0.5, "{error}");
    check_f64("v_rcp_f64", &inputs_f64(), |[x, ..]| 1.0 / x);
    check_f64("v_sqrt_f64", &inputs_f64(), |[x, ..]| x.sqrt());
    check_f64("v_rsq_f64", &inputs_f64(), |[x, ..]| 1.0 / x.sqrt());
}

#[test]
fn sine_and_cosine_of_turns() {
    // Exact reduction of x in turns, first to one turn, then to an eighth of a turn around an axis.
    let turn = |x: f64| x - x.round();
    let sine = move |x: f64| {
        let r = turn(x);
        let r = if r.abs() > 0.25 { 0.5f64.copysign(r) - r } else { r };
        if r.abs() > 0.125 {
            (std::f64::consts::TAU * (0.25 - r.abs())).cos().copysign(r)
        } else {
            (std::f64::consts::TAU * r).sin()
        }
    };
    let finite = [0.25f32, 0.125, 0.375, 1.75, 255.125, -0.625, 1e9];
    let error = max_error("v_sin_f32", sweep(-40, 10).chain(finite), sine);
    assert!(error < 0.51, "{error}");
    // The cosine is the sine shifted by a quarter turn; the sum is exact in f64.
    let error = max_error("v_cos_f32", sweep(-20, 10).chain(finite), |x| sine(0.25 - turn(x).abs()));
    assert!(error < 0.51, "{error}");
    for name in ["v_sin_f32", "v_cos_f32"] {
        assert_eq!(max_error(name, [f32::INFINITY, f32::NAN].into_iter(), |_| f64::NAN), 0.0);
    }
}
