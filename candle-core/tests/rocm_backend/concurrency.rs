use super::fixture::*;
use candle_core::{DType, Device, Tensor};

/// Computes a chain of operations.
fn chain(device: &Device, seed: f64) -> Vec<f32> {
    let t = Tensor::full(seed as f32, (8, 16), device).unwrap();
    let mut acc = t.clone();
    for _ in 0..10 {
        acc = (&acc + &t).unwrap().affine(0.5, 1.0).unwrap();
    }
    acc.sum(1).unwrap().to_vec1().unwrap()
}

#[test]
fn many_threads_share_a_device() {
    let (device, cpu) = (rocm(), Device::Cpu);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let (device, cpu) = (&device, &cpu);
            scope.spawn(move || {
                for round in 0..5 {
                    let seed = f64::from(i * 10 + round);
                    assert_eq!(chain(device, seed), chain(cpu, seed));
                }
            });
        }
    });
}

#[test]
fn two_devices_are_used_concurrently() {
    let Some(second) = second_rocm() else { return };
    let devices = [rocm(), second];
    std::thread::scope(|scope| {
        for (i, device) in devices.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..5 {
                    let seed = (i * 10 + round) as f64;
                    assert_eq!(chain(device, seed), chain(&Device::Cpu, seed));
                }
            });
        }
    });
}

#[test]
fn tensors_may_be_used_and_dropped_on_another_thread() {
    let Some(device) = second_rocm() else { return };
    let t = Tensor::ones((4, 4), DType::F32, &device).unwrap();
    // Makes the first device the current device of this thread.
    let _other = Tensor::ones(1, DType::F32, &rocm()).unwrap();
    let sum = std::thread::spawn(move || t.sum_all().unwrap().to_scalar::<f32>().unwrap()).join().unwrap();
    assert_eq!(sum, 16.0);
}

#[test]
fn devices_of_one_ordinal_work_together() {
    let (a, b) = (rocm(), rocm());
    assert!(a.same_device(&b));
    let (x, y) = (Tensor::ones(3, DType::F32, &a).unwrap(), Tensor::ones(3, DType::F32, &b).unwrap());
    assert_eq!((x + y).unwrap().to_vec1::<f32>().unwrap(), [2.0; 3]);
}

#[test]
fn streams_of_one_gpu_wait_for_each_other() {
    let (shared, own) = (rocm(), Device::new_rocm_with_stream(0).unwrap());
    assert!(!shared.same_device(&own));
    for i in 0..20 {
        let x = Tensor::full(i as f32, 1000, &shared).unwrap().affine(2.0, 0.0).unwrap();
        let y = Tensor::full(1f32, 1000, &own).unwrap().affine(3.0, 0.0).unwrap();
        assert_eq!((y + x).unwrap().to_vec1::<f32>().unwrap(), [2.0 * i as f32 + 3.0; 1000]);
    }
}

/// Products run on the stream of their result, after the copy of an operand on another stream.
#[test]
fn products_of_two_streams_wait_for_each_other() {
    let (shared, own) = (rocm(), Device::new_rocm_with_stream(0).unwrap());
    for i in 0..10 {
        let weights = Tensor::full(i as f32, (8, 3, 3, 3), &shared).unwrap().affine(2.0, 1.0).unwrap();
        let x = Tensor::full(1f32, (2, 3, 20, 20), &own).unwrap();
        let y = x.conv2d(&weights, 0, 1, 1, 1).unwrap();
        assert_eq!(y.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [27.0 * (2 * i + 1) as f32; 5184]);

        // BLAS does not support this stride along k, so the operand is copied.
        let row = Tensor::full(i as f32, (1, 64), &shared).unwrap().affine(1.0, 1.0).unwrap();
        let a = Tensor::full(1f32, (16, 64), &own).unwrap();
        let product = a.matmul(&row.broadcast_as((64, 64)).unwrap()).unwrap();
        assert_eq!(product.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [64.0 * (i + 1) as f32; 1024]);
    }
}
