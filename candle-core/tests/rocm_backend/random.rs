use super::fixture::*;
use candle_core::{DType, Device, Tensor};

const FRACTIONS: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::F8E4M3];

/// Returns a device with a separate random state.
fn seeded(seed: u64) -> Device {
    let device = rocm();
    device.set_seed(seed).unwrap();
    device
}

/// Computes the words of block `counter` of Philox4x32-10 by its definition (Salmon et al., 2011).
fn philox(key: u64, counter: u64) -> [u32; 4] {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let (p0, p1) = (u64::from(c[0]) * 0xD251_1F53, u64::from(c[2]) * 0xCD9E_8D57);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[test]
fn the_reference_generator_is_philox() {
    // The known answer for counter 0 and key 0 of the authors' Random123 library.
    assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
}

#[test]
fn uniform_numbers_are_those_of_philox() {
    let device = seeded(42);
    let got = Tensor::rand(0f32, 1f32, 11, &device).unwrap().to_vec1::<f32>().unwrap();
    let expected: Vec<f32> =
        (0..11).map(|i| (philox(42, i / 4)[i as usize % 4] >> 8) as f32 / 16_777_216.0).collect();
    assert_eq!(got, expected);
    // 11 numbers used three blocks.
    let next = Tensor::rand(0f64, 1f64, 1, &device).unwrap().to_vec1::<f64>().unwrap();
    let words = philox(42, 3);
    let bits = (u64::from(words[1]) << 32 | u64::from(words[0])) >> 11;
    assert_eq!(next, [bits as f64 / 9_007_199_254_740_992.0]);
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let draw = |device: &Device| Tensor::randn(0f32, 1f32, 1000, device).unwrap().to_vec1::<f32>().unwrap();
    let (a, b) = (seeded(7), seeded(7));
    let first = draw(&a);
    assert_eq!(first, draw(&b));
    assert_ne!(first, draw(&a));
    a.set_seed(7).unwrap();
    assert_eq!(first, draw(&a));
    assert_ne!(first, draw(&seeded(8)));
    assert_eq!(seeded(9).get_current_seed().unwrap(), 9);
}

#[test]
fn uniform_numbers_stay_in_their_range() {
    let device = seeded(1);
    for dtype in FRACTIONS {
        let t = Tensor::zeros(20_000, dtype, &device).unwrap().rand_like(-2.0, 3.0).unwrap();
        assert_eq!(t.dtype(), dtype);
        let values = to_f64(&t);
        assert!(values.iter().all(|v| (-2.0..3.0).contains(v)), "{dtype:?}");
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((mean - 0.5).abs() < 0.05, "{dtype:?} mean {mean}");
        // A negative range up to 0, which rounding could reach.
        let t = Tensor::zeros(20_000, dtype, &device).unwrap().rand_like(-1.0, 0.0).unwrap();
        let values = to_f64(&t);
        assert!(values.iter().all(|v| (-1.0..0.0).contains(v)), "{dtype:?}");
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((mean + 0.5).abs() < 0.02, "{dtype:?} mean {mean}");
    }
}

#[test]
fn tensors_of_narrow_random_numbers() {
    use half::{bf16, f16};
    let device = seeded(5);
    let (half, one) = (f16::from_f32(0.5), f16::ONE);
    let t = Tensor::rand(half, one, (20, 50), &device).unwrap();
    assert_eq!((t.dtype(), t.dims()), (DType::F16, &[20, 50][..]));
    assert!(to_f64(&t).iter().all(|v| (0.5..1.0).contains(v)));
    let t = Tensor::randn(bf16::ZERO, bf16::ONE, (20, 50), &device).unwrap();
    assert_eq!((t.dtype(), t.dims()), (DType::BF16, &[20, 50][..]));
    let t8 = Tensor::rand(float8::F8E4M3::ZERO, float8::F8E4M3::ONE, 50, &device).unwrap();
    assert!(t8.dtype() == DType::F8E4M3 && to_f64(&t8).iter().all(|v| (0.0..1.0).contains(v)));
    assert!(to_f64(&t).iter().any(|v| *v < 0.0) && to_f64(&t).iter().all(|v| v.abs() < 7.0));
}

#[test]
fn normal_numbers_have_their_mean_and_deviation() {
    let device = seeded(2);
    for dtype in FRACTIONS {
        let t = Tensor::zeros(20_001, dtype, &device).unwrap().randn_like(1.0, 2.0).unwrap();
        let values = to_f64(&t);
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((mean - 1.0).abs() < 0.06, "{dtype:?} mean {mean}");
        assert!((deviation - 2.0).abs() < 0.06, "{dtype:?} deviation {deviation}");
    }
}

#[test]
fn invalid_ranges_give_the_errors_of_the_cpu() {
    let device = seeded(3);
    for dtype in ALL {
        let (t, g) =
            (Tensor::zeros(4, dtype, &Device::Cpu).unwrap(), Tensor::zeros(4, dtype, &device).unwrap());
        if dtype.is_int() {
            assert_same_error(g.rand_like(0.0, 1.0), t.rand_like(0.0, 1.0), &format!("uniform {dtype:?}"));
            assert_same_error(g.randn_like(0.0, 1.0), t.randn_like(0.0, 1.0), &format!("normal {dtype:?}"));
            continue;
        }
        // Ranges that are empty, or become empty by rounding.
        for (low, high) in [(1.0, 1.0), (2.0, 1.0), (1.0, 1.0 + 1e-17)] {
            let what = format!("{dtype:?} {low} {high}");
            assert_same_error(g.rand_like(low, high), t.rand_like(low, high), &what);
        }
    }
    let (t, g) = (Tensor::zeros(4, DType::F16, &Device::Cpu), Tensor::zeros(4, DType::F16, &device));
    let (t, g) = (t.unwrap(), g.unwrap());
    assert_same_error(g.rand_like(0.0, 1e6), t.rand_like(0.0, 1e6), "beyond f16");
    assert_same_error(g.randn_like(0.0, 1e6), t.randn_like(0.0, 1e6), "a deviation beyond f16");
}
