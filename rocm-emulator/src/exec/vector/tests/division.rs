//! Comparison of the compiler's division sequences with the host's division.
use super::*;

/// Registers of the division sequence.
const DEN: u16 = 2;
const NUM: u16 = 4;
const D: u16 = 6;
const N: u16 = 8;
const R: u16 = 10;
const Q: u16 = 12;
const E: u16 = 14;

fn op(name: &'static str, dst: u16, src: [Operand; 3], neg: u8) -> Inst {
    let mut inst = inst(name);
    inst.dst = Operand::Vgpr(dst);
    inst.dst2 = if dst == N { Operand::Scalar(106) } else { Operand::Scalar(124) };
    inst.src = [src[0], src[1], src[2], Operand::None];
    inst.mods.neg = neg;
    inst
}

/// Returns the division sequence for a type, with `steps` refinements of the reciprocal.
fn sequence(suffix: &str, steps: usize) -> Vec<VectorStep<32>> {
    let name = |stem: &str| -> &'static str { Box::leak(format!("v_{stem}_{suffix}").into_boxed_str()) };
    let v = Operand::Vgpr;
    let one = Operand::Float(crate::isa::InlineFloat::One);
    let mut program = vec![
        op(name("div_scale"), D, [v(DEN), v(DEN), v(NUM)], 0),
        op(name("div_scale"), N, [v(NUM), v(DEN), v(NUM)], 0),
        op(name("rcp"), R, [v(D), Operand::None, Operand::None], 0),
    ];
    for _ in 0..steps {
        program.push(op(name("fma"), E, [v(D), v(R), one], 1));
        program.push(op(name("fma"), R, [v(E), v(R), v(R)], 0));
    }
    program.push(op(name("mul"), Q, [v(N), v(R), Operand::None], 0));
    if steps == 1 {
        program.push(op(name("fma"), E, [v(D), v(Q), v(N)], 1));
        program.push(op(name("fma"), Q, [v(E), v(R), v(Q)], 0));
    }
    program.push(op(name("fma"), E, [v(D), v(Q), v(N)], 1));
    program.push(op(name("div_fmas"), Q, [v(E), v(R), v(Q)], 0));
    program.push(op(name("div_fixup"), DST, [v(Q), v(DEN), v(NUM)], 0));
    program.iter().map(step).collect()
}

fn check<T: PartialEq + std::fmt::LowerExp>(
    suffix: &str,
    steps: usize,
    pairs: &[[u64; 3]],
    value: fn(u64) -> T,
    quotient: fn(u64, u64) -> T,
    is_nan: fn(&T) -> bool,
) {
    for baseline in [true, false] {
        BASELINE.set(baseline);
        let program = sequence(suffix, steps);
        for chunk in pairs.chunks(32) {
            let mut wave = wave();
            for (lane, [den, num, _]) in chunk.iter().enumerate() {
                set(&mut wave, DEN, lane, *den);
                set(&mut wave, NUM, lane, *num);
            }
            program.iter().for_each(|step| step.run(&mut wave));
            for (lane, [den, num, _]) in chunk.iter().enumerate() {
                let (found, expected) = (value(get(&wave, DST, lane)), quotient(*num, *den));
                let same = found == expected || (is_nan(&found) && is_nan(&expected));
                assert!(same, "{:e} / {:e}: {found:e}, expected {expected:e}", value(*num), value(*den));
            }
        }
    }
    BASELINE.set(false);
}

#[test]
fn quotients_of_f32() {
    let mut pairs = inputs_f32();
    // Quotients at both ends of the range, and denormal quotients.
    let mut random = Random::new(9);
    for _ in 0..50_000 {
        let bits = random.bits();
        pairs.push([bits >> 32 & 0x87ff_ffff | 0x7800_0000, bits & 0x83ff_ffff, 0]);
        pairs.push([bits >> 32 & 0x87ff_ffff, bits & 0x83ff_ffff | 0x7800_0000, 0]);
        pairs.push([bits >> 32 & 0x81ff_ffff | 0x5e00_0000, bits & 0x81ff_ffff | 0x1e00_0000, 0]);
        pairs.push([bits >> 32 & 0x81ff_ffff | 0x7c00_0000, bits & 0x81ff_ffff | 0x3c00_0000, 0]);
    }
    let value = |x: u64| f32::from_bits(x as u32);
    check(
        "f32",
        1,
        &pairs,
        value,
        |n, d| f32::from_bits(n as u32) / f32::from_bits(d as u32),
        |x| x.is_nan(),
    );
}

#[test]
fn quotients_of_f64() {
    let mut pairs = inputs_f64();
    let mut random = Random::new(11);
    for _ in 0..20_000 {
        let (a, b) = (random.bits(), random.bits());
        pairs.push([a & 0x807f_ffff_ffff_ffff | 0x7f80 << 48, b & 0x803f_ffff_ffff_ffff, 0]);
        pairs.push([a & 0x807f_ffff_ffff_ffff, b & 0x807f_ffff_ffff_ffff | 0x7f00 << 48, 0]);
        pairs.push([a & 0x803f_ffff_ffff_ffff | 0x5fc0 << 48, b & 0x803f_ffff_ffff_ffff | 0x1fc0 << 48, 0]);
        pairs.push([a & 0x803f_ffff_ffff_ffff | 0x7fc0 << 48, b & 0x803f_ffff_ffff_ffff | 0x3fc0 << 48, 0]);
    }
    check("f64", 2, &pairs, f64::from_bits, |n, d| f64::from_bits(n) / f64::from_bits(d), |x| x.is_nan());
}

#[test]
fn fixup_of_f16() {
    use super::half::{canonical_nan, nearest, value};
    check_inst(
        &inst("v_div_fixup_f16"),
        &half::inputs(),
        |(x, _)| canonical_nan(x & 0xffff),
        |v| {
            let [q, den, num] = v.map(|x| value(x as u16));
            let exact = num / den;
            if exact.is_nan() || exact.is_infinite() || exact == 0.0 {
                return canonical_nan(nearest(exact).into());
            }
            let magnitude = if q.is_nan() { f64::INFINITY } else { q.abs() };
            nearest(magnitude.copysign(exact))
        },
    );
}

#[test]
fn segments_of_two_over_pi() {
    let step = step(&inst("v_trig_preop_f64"));
    let segment = |x: f64, n: u32| {
        let mut wave = wave();
        set(&mut wave, SOURCES[0], 0, x.to_bits());
        set(&mut wave, SOURCES[1], 0, n.into());
        step.run(&mut wave);
        f64::from_bits(get(&wave, DST, 0))
    };
    let first = segment(1.0, 0);
    assert!(first <= std::f64::consts::FRAC_2_PI && first.next_up() >= std::f64::consts::FRAC_2_PI);
    // Each segment has the 53 bits below the previous one.
    for n in 1..20 {
        assert!(segment(1.0, n) < 2f64.powi(-53 * n as i32) && segment(1.0, n) > 0.0);
    }
    // The product of two segments and pi, both in twice the precision of f64, is 2.
    let pi = [std::f64::consts::PI, 1.224_646_799_147_353_2e-16];
    let product = first * pi[0];
    let rest = first.mul_add(pi[0], -product) + first * pi[1] + segment(1.0, 1) * pi[0];
    assert!(((product - 2.0) + rest).abs() < 1e-31);
    // 2^60 shifts the segment by six bits, which drops the leading bits 101000.
    let shifted = segment(2f64.powi(60), 0);
    assert!((shifted * 64.0 - (first * 64.0).fract()).abs() < 1e-14);
}
