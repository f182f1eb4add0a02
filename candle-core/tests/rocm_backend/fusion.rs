//! Fusion of deferred launches: results equal those of separate launches bit for bit.
use super::fixture::*;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use std::borrow::Cow;

/// Returns a device whose launches no other test affects.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

fn launched(device: &Device) -> u64 {
    device.as_rocm_device().unwrap().kernels_launched()
}

fn matrix(n: usize, k: usize, dtype: GgmlDType, device: &Device) -> QMatMul {
    let values = numbers(n * k, 1.0).into_iter().map(|v| v as f32).collect();
    let values = Tensor::from_vec(values, (n, k), &Device::Cpu).unwrap();
    let blocks = QTensor::quantize(&values, dtype).unwrap().data().unwrap().into_owned();
    let storage = QStorage::from_data(Cow::Owned(blocks), device, dtype).unwrap();
    QMatMul::from_qtensor(QTensor::new(storage, (n, k)).unwrap()).unwrap()
}

fn row(k: usize, seed: usize, device: &Device) -> Tensor {
    let values: Vec<f32> = (0..k).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_vec(values, (1, 1, k), device).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Runs `step` with fusion and with a wait after each operation, and compares the results. Returns the number of launches
/// with fusion.
fn launches_if_same_as_unfused(
    device: &Device,
    what: &str,
    step: impl Fn(&dyn Fn(Tensor) -> Tensor) -> Vec<Tensor>,
) -> u64 {
    // A first run loads the kernels.
    step(&|tensor| tensor);
    device.synchronize().unwrap();
    let before = launched(device);
    let together = step(&|tensor| tensor);
    device.synchronize().unwrap();
    let launches = launched(device) - before;
    let alone = step(&|tensor| {
        device.synchronize().unwrap();
        tensor
    });
    assert_eq!(together.len(), alone.len());
    for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(bits(together), bits(alone), "{what}: result {i}");
    }
    launches
}

#[test]
fn products_with_the_same_row_are_one_launch() {
    let device = own();
    let x = row(512, 1, &device);
    for dtype in [GgmlDType::Q4K, GgmlDType::Q8_0] {
        let matrices: Vec<QMatMul> = [64, 33, 1, 70].map(|n| matrix(n, 512, dtype, &device)).into();
        for count in 1..=4 {
            let launches = launches_if_same_as_unfused(&device, "products", |wait| {
                matrices[..count].iter().map(|matrix| wait(matrix.forward(&x).unwrap())).collect()
            });
            assert_eq!(launches, count.div_ceil(3) as u64, "{count} products");
        }
    }
    // Products with another format or another row are separate launches.
    let (a, b) = (matrix(64, 512, GgmlDType::Q4K, &device), matrix(64, 512, GgmlDType::Q6K, &device));
    let y = row(512, 2, &device);
    let launches = launches_if_same_as_unfused(&device, "unlike", |wait| {
        vec![wait(a.forward(&x).unwrap()), wait(b.forward(&x).unwrap()), wait(b.forward(&y).unwrap())]
    });
    assert_eq!(launches, 3);
}

/// A feed-forward layer, in both orders that models use.
#[test]
fn a_gated_layer_is_two_launches() {
    let device = own();
    let (k, n) = (256, 768);
    let up = matrix(n, k, GgmlDType::Q4K, &device);
    let gate = matrix(n, k, GgmlDType::Q4K, &device);
    let down = matrix(k, n, GgmlDType::Q4K, &device);
    let (x, residual) = (row(k, 3, &device), row(k, 4, &device));
    let launches = launches_if_same_as_unfused(&device, "silu last", |wait| {
        let gates = wait(gate.forward(&x).unwrap());
        let ups = wait(up.forward(&x).unwrap());
        let hidden = wait((wait(gates.silu().unwrap()) * ups).unwrap());
        drop(gates);
        let out = wait(down.forward(&hidden).unwrap());
        drop(hidden);
        vec![wait((out + &residual).unwrap())]
    });
    assert_eq!(launches, 2);
    let launches = launches_if_same_as_unfused(&device, "silu first", |wait| {
        let gates = wait(wait(gate.forward(&x).unwrap()).silu().unwrap());
        let ups = wait(up.forward(&x).unwrap());
        let hidden = wait((ups * gates).unwrap());
        vec![wait((&residual + wait(down.forward(&hidden).unwrap())).unwrap())]
    });
    assert_eq!(launches, 2);
}

/// Without fusion every operation is a launch, and the results have the same bits.
#[test]
fn fusion_can_be_switched_off() {
    let device = own();
    let k = 256;
    let (gate, up) = (matrix(k, k, GgmlDType::Q4K, &device), matrix(k, k, GgmlDType::Q4K, &device));
    let x = row(k, 3, &device);
    let step = || {
        let gates = gate.forward(&x).unwrap().silu().unwrap();
        let hidden = (gates * up.forward(&x).unwrap()).unwrap();
        (gate.forward(&hidden).unwrap() + &x).unwrap()
    };
    let rows = Tensor::cat(&[row(k, 4, &device), row(k, 5, &device)], 1).unwrap();
    let several = || [&gate, &up].map(|matrix| matrix.forward(&rows).unwrap()).map(|product| bits(&product));
    let launches_of = |work: &dyn Fn() -> Vec<u32>| {
        let before = launched(&device);
        let result = work();
        (result, launched(&device) - before)
    };
    let measure = || (launches_of(&|| bits(&step())), launches_of(&|| several().concat()));
    measure();
    let (one_row, rows_at_once) = measure();
    assert_eq!((one_row.1, rows_at_once.1), (2, 3));
    let rocm = device.as_rocm_device().unwrap();
    // Switching fusion off enqueues the deferred launches.
    let deferred = gate.forward(&x).unwrap();
    let before = launched(&device);
    rocm.set_fusion(false).unwrap();
    assert_eq!(launched(&device) - before, 1);
    drop(deferred);
    let (alone, rows_alone) = measure();
    assert_eq!((alone.1, rows_alone.1), (6, 4));
    assert_eq!((alone.0, rows_alone.0), (one_row.0.clone(), rows_at_once.0));
    rocm.set_fusion(true).unwrap();
    assert_eq!(launches_of(&|| bits(&step())), one_row);
}

/// Every intermediate result that is kept has correct values.
#[test]
fn kept_intermediate_results_are_computed() {
    let device = own();
    let k = 256;
    let (a, b) = (matrix(k, k, GgmlDType::Q4_0, &device), matrix(k, k, GgmlDType::Q4_0, &device));
    let (x, other) = (row(k, 5, &device), row(k, 6, &device));
    for kept in 0..64u32 {
        launches_if_same_as_unfused(&device, &format!("kept {kept:b}"), |wait| {
            let mut results = Vec::new();
            let mut keep = |bit: u32, tensor: &Tensor| {
                if kept >> bit & 1 == 1 {
                    results.push(tensor.clone());
                }
            };
            let p = wait(a.forward(&x).unwrap());
            keep(0, &p);
            let s = wait(p.silu().unwrap());
            keep(1, &s);
            let q = wait(b.forward(&x).unwrap());
            keep(2, &q);
            drop(p);
            let g = wait((&s * &q).unwrap());
            keep(3, &g);
            drop((s, q));
            let r = wait(a.forward(&g).unwrap());
            keep(4, &r);
            drop(g);
            let z = wait((&r + &other).unwrap());
            keep(5, &z);
            results
        });
    }
}

/// Work is done even if its result is not read.
#[test]
fn dropped_results_are_computed() {
    let device = own();
    let w = matrix(64, 256, GgmlDType::Q4K, &device);
    let x = row(256, 9, &device);
    w.forward(&x).unwrap();
    device.synchronize().unwrap();
    let before = launched(&device);
    for _ in 0..30 {
        w.forward(&x).unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(launched(&device) - before, 10);
    w.forward(&x).unwrap().silu().unwrap();
    device.synchronize().unwrap();
    assert_eq!(launched(&device) - before, 12);
}

/// Memory that deferred work reads is not reused.
#[test]
fn operands_can_be_dropped_before_the_launch() {
    let device = own();
    for round in 0..20 {
        let (x, expected) = {
            let w = matrix(64, 256, GgmlDType::Q5K, &device);
            let expected = bits(&w.forward(&row(256, round, &device)).unwrap());
            // Both the matrix and the row are dropped before the product is enqueued.
            (w.forward(&row(256, round, &device)).unwrap(), expected)
        };
        let filling: Vec<Tensor> = (0..8).map(|_| Tensor::ones(256, DType::F32, &device).unwrap()).collect();
        assert_eq!(bits(&x), expected);
        drop(filling);
    }
}

/// A later write to an operand is ordered after the deferred product.
#[test]
fn later_writes_do_not_affect_deferred_work() {
    let device = own();
    let w = matrix(64, 256, GgmlDType::Q4K, &device);
    let x = Tensor::zeros((1, 256), DType::F32, &device).unwrap();
    let ones = Tensor::ones((1, 256), DType::F32, &device).unwrap();
    let before = w.forward(&x).unwrap();
    x.slice_set(&ones, 0, 0).unwrap();
    let after = w.forward(&x).unwrap();
    assert!(bits(&before).iter().all(|&bits| bits << 1 == 0));
    assert_eq!(bits(&after), bits(&w.forward(&ones).unwrap()));
    // Cached quantized activations are not reused after a write either.
    let x = Tensor::zeros((3, 256), DType::F32, &device).unwrap();
    let ones = Tensor::ones((3, 256), DType::F32, &device).unwrap();
    let before = w.forward(&x).unwrap();
    x.slice_set(&ones, 0, 0).unwrap();
    let after = w.forward(&x).unwrap();
    assert!(bits(&before).iter().all(|&bits| bits << 1 == 0));
    assert_eq!(bits(&after), bits(&w.forward(&ones).unwrap()));
}

#[test]
fn products_of_several_rows_share_their_activations() {
    let device = own();
    let matrices = [64, 33, 70].map(|n| matrix(n, 512, GgmlDType::Q4K, &device));
    let x = Tensor::cat(&[row(512, 1, &device), row(512, 2, &device), row(512, 3, &device)], 1).unwrap();
    let launches = launches_if_same_as_unfused(&device, "rows", |wait| {
        matrices.iter().map(|matrix| wait(matrix.forward(&x).unwrap())).collect()
    });
    assert_eq!(launches, 4);
}

/// Work of another stream that uses a deferred result is ordered after it.
#[test]
fn other_streams_are_ordered_after_deferred_work() -> Result<()> {
    let (one, two) = (own(), own());
    let w = matrix(64, 256, GgmlDType::Q4K, &one);
    let x = row(256, 7, &one);
    let expected = bits(&w.forward(&x)?);
    for _ in 0..20 {
        let deferred = w.forward(&x)?;
        assert_eq!(bits(&deferred.to_device(&two)?), expected);
        let deferred = w.forward(&x)?;
        let ones = Tensor::ones((1, 1, 64), DType::F32, &two)?;
        let product = (ones * deferred)?;
        assert_eq!(bits(&product), expected);
    }
    Ok(())
}

/// Threads pass results to each other.
#[test]
fn threads_share_a_stream() {
    let device = own();
    let w = matrix(64, 256, GgmlDType::Q8_0, &device);
    let x = row(256, 8, &device);
    let expected = bits(&w.forward(&x).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (w, x, expected, device) = (&w, &x, &expected, &device);
            scope.spawn(move || {
                for _ in 0..50 {
                    let result = w.forward(x).unwrap();
                    let twice = std::thread::scope(|inner| {
                        inner
                            .spawn(|| {
                                (&result + Tensor::zeros((1, 1, 64), DType::F32, device).unwrap()).unwrap()
                            })
                            .join()
                    });
                    assert_eq!(&bits(&twice.unwrap()), expected);
                    assert_eq!(&bits(&result), expected);
                }
            });
        }
    });
}
