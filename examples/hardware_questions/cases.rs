//! Operands of the questions about instructions, as 32-bit words. The parameter is the number of lanes of a wave.
use half::f16;

fn single(bits: &[u32]) -> Vec<Vec<u32>> {
    bits.iter().map(|bits| vec![*bits]).collect()
}

/// Zeros, denormals, limits of normal numbers, infinities, NaN (quiet and signalling), and an ordinary number.
const EDGES: [u32; 18] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x0000_1234,
    0x0040_0000,
    0x007f_ffff,
    0x807f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0001,
    0x7f7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0xffc0_1234,
    0x4049_0fdb,
];

pub fn edges(_: u32) -> Vec<Vec<u32>> {
    single(&EDGES)
}

pub fn edges_f16(_: u32) -> Vec<Vec<u32>> {
    single(&[
        0, 0x8000, 1, 0x8001, 0x0123, 0x0200, 0x03ff, 0x83ff, 0x0400, 0x3c00, 0xbc01, 0x7bff, 0x7c00, 0xfc00,
        0x7e00, 0x7c01,
    ])
}

pub fn edges_f64(_: u32) -> Vec<Vec<u32>> {
    let bits: [u64; 10] = [
        0,
        1,
        1 << 51,
        (1 << 52) - 1,
        1 << 63 | 77,
        1 << 52,
        1f64.to_bits(),
        f64::MAX.to_bits(),
        f64::INFINITY.to_bits(),
        f64::NAN.to_bits(),
    ];
    bits.iter().map(|bits| vec![*bits as u32, (*bits >> 32) as u32]).collect()
}

/// Operands at which the steps of a division branch: denormals, exponents 23, 24, 252 to 254, extreme quotients.
const OPERANDS: [u32; 13] = [
    0,
    0x8000_0000,
    1,
    0x0040_0001,
    0x0080_0000,
    0x0b80_0000,
    0x0c00_0001,
    0x3f80_0000,
    0xc049_0fdb,
    0x6f80_0000,
    0x7e80_0001,
    0x7f7f_ffff,
    0x7fc0_0000,
];

pub fn pairs(_: u32) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> =
        OPERANDS.iter().flat_map(|a| OPERANDS.iter().map(|b| vec![*a, *b])).collect();
    // Signalling NaN and infinities.
    for (a, b) in
        [(0x7f80_0001, 0x3f80_0000), (0x3f80_0000, 0x7f80_0001), (0x7f80_0000, 0x7f80_0000), (0xff80_0000, 1)]
    {
        all.push(vec![a, b]);
    }
    all
}

/// Returns numerator, denominator, and a quotient as computed by the previous steps.
pub fn fixups(_: u32) -> Vec<Vec<u32>> {
    let quotients = [0x3f80_0000, 0x7fc0_0000, 0x0000_0001, 0x7f80_0000];
    let few = [0, 1, 0x0080_0000, 0x3f80_0000, 0xc049_0fdb, 0x7f7f_ffff, 0x7f80_0000];
    let mut all = Vec::new();
    for q in quotients {
        all.extend(few.iter().flat_map(|a| few.iter().map(move |b| vec![*a, *b, q])));
    }
    all
}

fn floats(values: &[f32]) -> Vec<Vec<u32>> {
    values.iter().map(|value| vec![value.to_bits()]).collect()
}

/// Returns exponents that give powers of two, since other results are approximate.
pub fn exponents(_: u32) -> Vec<Vec<u32>> {
    floats(&[
        0.0,
        1e-40,
        -1e-40,
        -125.0,
        -126.0,
        -127.0,
        -140.0,
        -149.0,
        -150.0,
        127.0,
        128.0,
        f32::NEG_INFINITY,
        f32::INFINITY,
    ])
}

pub fn log_edges(_: u32) -> Vec<Vec<u32>> {
    let mut all = floats(&[0.0, -0.0, 1.0, 2.0, f32::MIN_POSITIVE, f32::INFINITY]);
    all.extend(single(&[1, 0x0040_0000, 0x007f_ffff]));
    all
}

/// Returns powers of two of every magnitude, including denormals.
pub fn positive_powers(_: u32) -> Vec<Vec<u32>> {
    let mut all = single(&[0, 1, 4, 0x0001_0000, 0x0040_0000, 0x7f80_0000]);
    all.extend((1..255).step_by(2).map(|exponent| vec![exponent << 23]));
    all
}

pub fn powers(_: u32) -> Vec<Vec<u32>> {
    let mut all = single(&[0, 0x8000_0000, 1, 0x8000_0001, 0x0040_0000, 0x7f80_0000, 0xff80_0000]);
    all.extend((1..255).step_by(7).chain([252, 253, 254]).map(|exponent| vec![exponent << 23]));
    all
}

/// Returns angles in turns.
pub fn angles(_: u32) -> Vec<Vec<u32>> {
    floats(&[
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
        -0.25,
        255.25,
        256.25,
        257.5,
        300.25,
        511.75,
        512.25,
        1000.5,
        1_000_000.25,
        1e30,
        f32::INFINITY,
    ])
}

pub fn scalings(_: u32) -> Vec<Vec<u32>> {
    let ldexp = |value: f32, by: i32| vec![value.to_bits(), by as u32];
    vec![
        ldexp(1.5, -149),
        ldexp(1.25, -148),
        ldexp(1.75, -148),
        ldexp(1.0, -150),
        ldexp(1.000_000_1, -150),
        ldexp(1.999_999_9, -127),
        ldexp(1.0, 128),
        ldexp(f32::from_bits(1), 200),
        ldexp(f32::MAX, -300),
        ldexp(-1.5, -149),
        ldexp(1.0, i32::MAX),
        ldexp(1.0, i32::MIN),
    ]
}

pub fn halves(_: u32) -> Vec<Vec<u32>> {
    let values = [
        65504.0,
        65519.99,
        65520.0,
        65536.0,
        1e10,
        -65520.0,
        f32::INFINITY,
        6.1e-5,
        6.0e-5,
        3e-8,
        2.98e-8,
        2.9e-8,
        5.96e-8,
        -1e-9,
        1.0004,
        1.0005,
    ];
    let mut all: Vec<Vec<u32>> =
        values.iter().map(|value| vec![value.to_bits(), (-value).to_bits()]).collect();
    all.extend([vec![0x7fc0_0000, 0x7f80_0001], vec![0xffc0_1234, 1]]);
    all
}

fn two(low: f64, high: f64) -> u32 {
    u32::from(f16::from_f64(low).to_bits()) | u32::from(f16::from_f64(high).to_bits()) << 16
}

pub fn dots(_: u32) -> Vec<Vec<u32>> {
    let tiny = 2f64.powi(-24);
    let dot = |a: [f64; 2], b: [f64; 2], c: f32| vec![two(a[0], a[1]), two(b[0], b[1]), c.to_bits()];
    vec![
        dot([1.0, 1.0], [1.0, 1.0], 1.0),
        // Half an ulp each: separately they are rounded away, together they are not.
        dot([2f64.powi(-12), 2f64.powi(-12)], [2f64.powi(-12), 2f64.powi(-12)], 1.0),
        dot([1.0, 1.0], [1.0, 1.0], 16_777_216.0),
        dot([4096.0, 0.0625], [4096.0, 1.0], -16_777_216.0),
        dot([4096.0, -4096.0], [4096.0, 4096.0], 0.0625),
        // Denormals: f16 in the operands, f32 in the addend and the result.
        dot([tiny, 0.0], [1.0, 0.0], 0.0),
        dot([tiny, tiny], [tiny, tiny], 0.0),
        dot([0.0, 0.0], [0.0, 0.0], f32::from_bits(0x0001_0000)),
        dot([-0.0, 0.0], [1.0, 0.0], -0.0),
        dot([65504.0, 65504.0], [65504.0, 65504.0], f32::MAX),
        dot([f64::INFINITY, 1.0], [0.0, 1.0], 0.0),
    ]
}

pub fn triples(_: u32) -> Vec<Vec<u32>> {
    let (one, two, nan, signalling) = (1f32.to_bits(), 2f32.to_bits(), 0x7fc0_0000, 0x7f80_0001);
    let mut all = Vec::new();
    for bad in [nan, signalling, 0x8000_0000] {
        all.extend([
            vec![bad, one, two],
            vec![one, bad, two],
            vec![two, one, bad],
            vec![bad, bad, one],
            vec![bad, 0, one],
        ]);
    }
    all
}

pub fn half_pairs(_: u32) -> Vec<Vec<u32>> {
    let edges = [0u32, 0x8000, 1, 0x3c00, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfe12];
    // The high halves contain the same values in reverse order.
    edges.iter().flat_map(|a| edges.iter().map(move |b| vec![a | b << 16, b | a << 16])).collect()
}

/// Returns byte addresses, 4 bytes per lane: within the wave, beyond it, negative, and unaligned.
pub fn lane_addresses(lanes: u32) -> Vec<Vec<u32>> {
    let address = |lane: u32| match lane % 4 {
        0 => 4 * (lane + 1),
        1 => 4 * (lane + lanes),
        2 => 4 * lane + 3,
        _ => (4 * lane).wrapping_sub(256),
    };
    (0..lanes).map(|lane| vec![address(lane), 1000 + lane, lane]).collect()
}

pub fn far_lane(lanes: u32) -> Vec<Vec<u32>> {
    (0..lanes).map(|lane| vec![0, 1000 + lane, lanes + 5]).collect()
}

pub fn atomic_pairs(_: u32) -> Vec<Vec<u32>> {
    [
        (1, 1),
        (0x0040_0000, 0x0040_0000),
        (0x0080_0001, 0x8080_0000),
        (0x8000_0001, 1),
        (0, 0x8000_0000),
        (0x8000_0000, 0x8000_0000),
        (0x7f7f_ffff, 0x7f7f_ffff),
        (0x7f80_0000, 0xff80_0000),
        (0x7fc0_0000, 0x3f80_0000),
        (0x3f80_0000, 0x7f80_0001),
        (0x3f80_0000, 0x3380_0000),
        (0x3f80_0000, 0x3380_0001),
    ]
    .map(|(a, b)| vec![a, b])
    .to_vec()
}
