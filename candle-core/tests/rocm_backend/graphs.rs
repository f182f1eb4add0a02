//! Graphs: capture, replay, memory, and errors.
use super::fixture::*;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::rocm::{copy_to_tensor, GraphState, RocmDevice, RocmGraph};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use std::borrow::Cow;

/// Returns a device whose launches and memory no other test affects.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

fn of(device: &Device) -> &RocmDevice {
    device.as_rocm_device().unwrap()
}

/// Runs `work` once as usual, and then captures it.
fn capture<T>(device: &Device, work: impl Fn() -> Result<T>) -> (RocmGraph, T) {
    work().unwrap();
    of(device).capture(&work).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_contains(error: &candle_core::Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[track_caller]
fn assert_works(device: &Device) {
    let t = Tensor::new(&[1f32, 2.0], device).unwrap();
    assert_eq!(values(&(&t + &t).unwrap()), [2.0, 4.0]);
    let (graph, sum) = capture(device, || &t + &t);
    graph.replay().unwrap();
    assert_eq!(values(&sum), [2.0, 4.0]);
}

#[test]
fn replays_read_inputs_that_were_written_in_place() {
    let device = own();
    let x = Tensor::zeros((3, 4), DType::F32, &device).unwrap();
    let weight = tensor(&[4, 2], DType::F32, 1.0).to_device(&device).unwrap();
    let step = |x: &Tensor| x.exp()?.matmul(&weight)?.relu()?.sum_keepdim(0);
    let (graph, out) = capture(&device, || step(&x));
    assert!(graph.nodes() >= 4 && graph.kernels() >= 3, "{graph:?}");
    for turn in 0..5 {
        let input: Vec<f32> = (0..12).map(|i| (i * turn) as f32 / 20.0 - 1.0).collect();
        copy_to_tensor(&input, &x).unwrap();
        let launched = of(&device).kernels_launched();
        graph.replay().unwrap();
        assert_eq!(of(&device).kernels_launched() - launched, graph.kernels());
        let eager = step(&Tensor::from_vec(input, (3, 4), &device).unwrap()).unwrap();
        assert_eq!(values(&out), values(&eager));
    }
}

#[test]
fn nothing_runs_before_a_replay() {
    let device = own();
    let x = Tensor::ones(100, DType::F32, &device).unwrap();
    let add = || x.slice_set(&(x.narrow(0, 0, 50)? + 1.0)?, 0, 50);
    let (graph, ()) = capture(&device, add);
    // The run before the capture.
    assert_eq!(values(&x)[50..], [2.0; 50]);
    copy_to_tensor(&[5f32; 100], &x).unwrap();
    assert_eq!(values(&x), [5.0; 100]);
    graph.replay().unwrap();
    assert_eq!(values(&x)[50..], [6.0; 50]);
    drop(graph);
    assert_works(&device);
}

#[test]
fn an_empty_graph_and_an_empty_tensor_are_no_errors() {
    let device = own();
    let (graph, ()) = of(&device).capture(|| Ok(())).unwrap();
    assert_eq!((graph.nodes(), graph.kernels()), (0, 0));
    graph.replay().unwrap();
    let empty = Tensor::zeros((0, 3), DType::F32, &device).unwrap();
    copy_to_tensor::<f32>(&[], &empty).unwrap();
    let (graph, out) = of(&device).capture(|| empty.exp()).unwrap();
    graph.replay().unwrap();
    assert_eq!(out.dims(), [0, 3]);
}

#[test]
fn memory_of_the_capture_belongs_to_the_graph() {
    let device = own();
    let x = Tensor::ones(1000, DType::F32, &device).unwrap();
    // The intermediate results use the same memory one after the other.
    let chain = || (0..20).try_fold(x.clone(), |x, _| x.affine(1.0, 1.0));
    let before = of(&device).memory_stats().live;
    let (graph, out) = capture(&device, chain);
    let memory = graph.memory().unwrap();
    assert!(memory.bytes() > 0 && memory.bytes() <= 2 << 20, "{memory:?}");
    assert_eq!(of(&device).memory_stats().live, before);
    graph.replay().unwrap();
    // Later allocations do not use the graph's memory.
    let others: Vec<Tensor> = (0..30).map(|_| Tensor::full(7f32, 1000, &device).unwrap()).collect();
    assert_eq!(values(&out), [21.0; 1000]);
    graph.replay().unwrap();
    assert!(others.iter().all(|other| values(other) == [7.0; 1000]));
    // The result outlives the graph.
    drop((graph, memory));
    let _more = Tensor::full(9f32, 100_000, &device).unwrap();
    assert_eq!(values(&out), [21.0; 1000]);
}

#[test]
fn tensors_that_the_graph_uses_are_kept() {
    let device = own();
    let before = of(&device).memory_stats().live;
    let x = Tensor::full(3f32, 1000, &device).unwrap();
    let y = Tensor::full(4f32, 1000, &device).unwrap();
    (&x * &y).unwrap();
    // One is dropped within the capture, the other after it.
    let mut inside = Some(y);
    let (graph, out) = of(&device).capture(|| &x * &inside.take().unwrap()).unwrap();
    drop(x);
    let others: Vec<Tensor> = (0..10).map(|_| Tensor::zeros(1000, DType::F32, &device).unwrap()).collect();
    graph.replay().unwrap();
    assert_eq!(values(&out), [12.0; 1000]);
    drop((graph, out, others));
    assert_eq!(of(&device).memory_stats().live, before, "the graph's inputs were released with it");
}

#[test]
fn the_result_of_one_graph_is_the_input_of_another() {
    let device = own();
    let x = Tensor::zeros(64, DType::F32, &device).unwrap();
    let (first, y) = capture(&device, || x.affine(2.0, 1.0));
    first.replay().unwrap();
    let (second, z) = capture(&device, || y.affine(10.0, 0.0));
    // The second graph keeps what it reads of the first.
    drop(y);
    for turn in 0..3 {
        copy_to_tensor(&[turn as f32; 64], &x).unwrap();
        first.replay().unwrap();
        second.replay().unwrap();
        assert_eq!(values(&z), [(turn as f32 * 2.0 + 1.0) * 10.0; 64]);
    }
    drop(first);
    second.replay().unwrap();
    assert_eq!(values(&z), [50.0; 64]);
}

#[test]
fn graphs_share_memory() {
    let device = own();
    let x = Tensor::ones(200_000, DType::F32, &device).unwrap();
    let chain = |count: usize| (0..count).try_fold(x.clone(), |x, _| x.affine(1.0, 1.0)?.exp()?.log());
    let (large, first) = capture(&device, || chain(4)?.sum_all());
    let memory = large.memory().unwrap();
    let bytes = memory.bytes();
    let (small, second) = of(&device).capture_into(&memory, || chain(2)?.sum_all()).unwrap();
    assert_eq!(memory.bytes(), bytes, "the smaller graph needs no more");
    for _ in 0..2 {
        large.replay().unwrap();
        let first = first.to_scalar::<f32>().unwrap();
        small.replay().unwrap();
        let second = second.to_scalar::<f32>().unwrap();
        assert!((first / 1e6 - 1.0).abs() < 1e-3 && (second / 6e5 - 1.0).abs() < 1e-3, "{first} {second}");
    }
    let other = own();
    let error = of(&other).capture_into(&memory, || Ok(())).unwrap_err();
    assert_contains(&error, &["graph memory belongs to another device"]);
}

#[test]
fn ten_thousand_replays_leak_nothing() {
    let device = own();
    let x = Tensor::ones((2, 16), DType::F32, &device).unwrap();
    let weight = tensor(&[16, 16], DType::F32, 1.0).to_device(&device).unwrap();
    let (graph, out) = capture(&device, || x.matmul(&weight)?.tanh()? + 1.0);
    graph.replay().unwrap();
    let expected = values(&out);
    let stats = of(&device).memory_stats();
    for _ in 0..10_000 {
        copy_to_tensor(&[1f32; 32], &x).unwrap();
        graph.replay().unwrap();
    }
    assert_eq!(values(&out), expected);
    assert_eq!(of(&device).memory_stats(), stats);
}

#[test]
fn products_of_quantized_weights_are_fused_in_a_capture() {
    let device = own();
    let values_of = |count| numbers(count, 1.0).into_iter().map(|v| v as f32).collect::<Vec<_>>();
    let matrix = |n: usize, k: usize| {
        let values = Tensor::from_vec(values_of(n * k), (n, k), &Device::Cpu).unwrap();
        let blocks = QTensor::quantize(&values, GgmlDType::Q4K).unwrap().data().unwrap().into_owned();
        let storage = QStorage::from_data(Cow::Owned(blocks), &device, GgmlDType::Q4K).unwrap();
        QMatMul::from_qtensor(QTensor::new(storage, (n, k)).unwrap()).unwrap()
    };
    let x = Tensor::from_vec(values_of(256), (1, 256), &device).unwrap();
    let (gate, up, down) = (matrix(512, 256), matrix(512, 256), matrix(256, 512));
    let mlp = || {
        let hidden = (gate.forward(&x)?.silu()? * up.forward(&x)?)?;
        &x + down.forward(&hidden)?
    };
    let launched = of(&device).kernels_launched();
    mlp().unwrap();
    device.synchronize().unwrap();
    let launched = of(&device).kernels_launched() - launched;
    let (graph, out) = capture(&device, mlp);
    assert_eq!(graph.kernels(), launched);
    for turn in 0..3 {
        let input: Vec<f32> = (0..256).map(|i| ((i * 37 + turn * 11) % 101) as f32 / 50.0 - 1.0).collect();
        copy_to_tensor(&input, &x).unwrap();
        graph.replay().unwrap();
        assert_eq!(values(&out), values(&mlp().unwrap()));
    }
}

#[test]
fn streams_that_are_ordered_after_the_capture_are_part_of_the_graph() {
    let (device, other) = (own(), own());
    let x = Tensor::ones(1000, DType::F32, &device).unwrap();
    // An operand that another stream writes, and a result on another stream.
    let operand = Tensor::ones(1000, DType::F32, &other).unwrap();
    let work = || {
        let sum = (&x + &operand)?;
        let elsewhere = sum.to_device(&other)?.affine(10.0, 0.0)?;
        let back = (&sum + elsewhere.affine(1.0, 1.0)?)?;
        Ok((elsewhere, back))
    };
    let (graph, (elsewhere, back)) = capture(&device, work);
    for turn in 1..4 {
        let turn = turn as f32;
        copy_to_tensor(&[turn; 1000], &operand).unwrap();
        graph.replay().unwrap();
        let sum = turn + 1.0;
        assert_eq!(values(&elsewhere), [sum * 10.0; 1000]);
        assert_eq!(values(&back), [sum * 11.0 + 1.0; 1000]);
    }
    assert_works(&other);
    drop((elsewhere, back));
    drop(graph);
    assert_works(&device);
}

#[test]
fn random_numbers_repeat() {
    let device = own();
    device.set_seed(7).unwrap();
    let (graph, out) = capture(&device, || Tensor::rand(0f32, 1f32, 1000, &device));
    graph.replay().unwrap();
    let first = values(&out);
    graph.replay().unwrap();
    assert_eq!(values(&out), first);
    assert!(first.iter().any(|value| *value != first[0]));
}

#[test]
fn operations_that_cannot_be_captured_are_errors_that_name_them() {
    let device = own();
    let x = Tensor::ones((2, 3), DType::F32, &device).unwrap();
    let refused = |work: &dyn Fn() -> Result<()>, parts: &[&str]| {
        let error = of(&device).capture(work).unwrap_err();
        assert_contains(&error, parts);
        assert_contains(&error, &["is not possible while a graph is captured on rocm:0"]);
        assert_works(&device);
    };
    refused(
        &|| x.to_vec2::<f32>().map(drop),
        &["copying 24 B to the host", "copy results after the capture"],
    );
    refused(&|| device.synchronize(), &["waiting for the stream (waiting for the device)"]);
    refused(
        &|| Tensor::new(&[1f32, 2.0], &device).map(drop),
        &["copying 8 B from the host", "copy_to_tensor"],
    );
    refused(&|| copy_to_tensor(&[0f32; 6], &x), &["copying 24 B from the host"]);
    refused(
        &|| of(&device).capture(|| Ok(())).map(drop),
        &["capturing another graph", "one graph after the other"],
    );
    let (graph, _) = capture(&device, || x.exp());
    refused(&|| graph.replay(), &["replaying a graph"]);
    // No other test uses this kernel on this device.
    refused(
        &|| x.erf().map(drop),
        &["loading the kernel", "run the same operations once before the capture"],
    );
    if let Some(second) = second_rocm() {
        refused(&|| x.to_device(&second).map(drop), &["copying from rocm:0", "to rocm:1"]);
    }
    let fresh = own();
    let y = Tensor::ones((8, 8), DType::F32, &fresh).unwrap();
    let library = of(&fresh).capture(|| y.matmul(&y)).map(drop);
    if let Err(error) = library {
        assert_contains(&error, &["before the capture"]);
    }
    assert_works(&fresh);
}

#[test]
fn a_closure_that_fails_or_panics_leaves_the_device_usable() {
    let device = own();
    let x = Tensor::ones(100, DType::F32, &device).unwrap();
    x.exp().unwrap();
    let error = of(&device).capture(|| -> Result<()> {
        x.exp()?;
        candle_core::bail!("on purpose")
    });
    assert_contains(&error.unwrap_err(), &["on purpose"]);
    assert_works(&device);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        of(&device).capture(|| -> Result<()> {
            let _result = x.exp()?;
            panic!("on purpose")
        })
    }));
    assert!(caught.is_err());
    assert_works(&device);
    // An error that the closure handles is no failure of the capture.
    let (graph, out) = of(&device)
        .capture(|| match x.to_vec1::<f32>() {
            Err(_) => x.exp(),
            Ok(_) => candle_core::bail!("copied within a capture"),
        })
        .unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&out), [1f32.exp(); 100]);
}

#[test]
fn an_index_out_of_range_in_a_replay_is_reported_when_data_comes_back() {
    let device = own();
    let table = tensor(&[5, 3], DType::F32, 1.0).to_device(&device).unwrap();
    let ids = Tensor::new(&[1u32, 2], &device).unwrap();
    let (graph, rows) = capture(&device, || table.index_select(&ids, 0));
    copy_to_tensor(&[1u32, 9], &ids).unwrap();
    graph.replay().unwrap();
    assert_contains(&rows.to_vec2::<f32>().unwrap_err(), &["index-select", "index 9", "size 5"]);
    copy_to_tensor(&[4u32, 0], &ids).unwrap();
    graph.replay().unwrap();
    let expected = table.index_select(&Tensor::new(&[4u32, 0], &device).unwrap(), 0).unwrap();
    assert_eq!(values(&rows), values(&expected));
}

#[test]
fn other_threads_use_the_device_during_a_capture_and_replays() {
    let device = own();
    let x = Tensor::ones(1000, DType::F32, &device).unwrap();
    let (begun, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let chain = |count: usize| (0..count).try_fold(x.clone(), |x, _| x.affine(1.0, 1.0));
    chain(1).unwrap();
    let (graph, out) = std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            // Allocations, launches, waits, frees and fusion of another thread are not recorded.
            assert_eq!(values(&chain(5).unwrap()), [6.0; 1000]);
            device.synchronize().unwrap();
            let error = of(&device).capture(|| chain(1)).unwrap_err();
            assert_contains(&error, &["capturing by another thread"]);
            ended.wait();
        });
        let captured = of(&device).capture(|| {
            let half = chain(2)?;
            begun.wait();
            ended.wait();
            half.affine(1.0, 1.0)
        });
        captured.unwrap()
    });
    assert_eq!(graph.kernels(), 3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..50).for_each(|_| graph.replay().unwrap()));
        }
    });
    assert_eq!(values(&out), [4.0; 1000]);
}

#[test]
fn gradients_are_captured() {
    let device = own();
    let weight = Var::from_tensor(&tensor(&[6, 3], DType::F32, 1.0).to_device(&device).unwrap()).unwrap();
    let x = Tensor::ones((4, 6), DType::F32, &device).unwrap();
    let step = || {
        let loss = x.matmul(&weight)?.sqr()?.mean_all()?;
        let gradients = loss.backward()?;
        Ok(gradients.get(&weight).cloned().expect("a gradient"))
    };
    let (graph, gradient) = capture(&device, step);
    for turn in 1..4 {
        copy_to_tensor(&[turn as f32 / 3.0; 24], &x).unwrap();
        graph.replay().unwrap();
        assert_eq!(values(&gradient), values(&step().unwrap()));
    }
}

#[test]
fn a_variable_disables_graphs() {
    if on_software_gpu("the setting is the same for every driver") {
        passes_in_its_own_process("graphs::disabled_by_the_variable", ("CANDLE_ROCM_GRAPHS", "0"));
        passes_in_its_own_process("graphs::checked_and_disabled", ("CANDLE_ROCM_GRAPHS", "check"));
    }
}

#[test]
#[ignore = "run by a_variable_disables_graphs"]
fn disabled_by_the_variable() {
    let device = own();
    let error = of(&device).capture(|| Ok(())).unwrap_err();
    assert_contains(&error, &["graphs are disabled on rocm:0", "CANDLE_ROCM_GRAPHS=0"]);
    assert!(matches!(of(&device).graph_state(), GraphState::Disabled(_)));
}

#[test]
#[ignore = "run by a_variable_disables_graphs"]
fn checked_and_disabled() {
    let device = own();
    let x = Tensor::ones(10, DType::F32, &device).unwrap();
    let (graph, out) = capture(&device, || x.exp());
    assert!(graph.known_fault().is_some_and(|fault| fault.contains("CANDLE_ROCM_GRAPHS=check")));
    assert!(matches!(of(&device).graph_state(), GraphState::Checked(_)));
    of(&device).disable_graphs("a replay computed a wrong result");
    of(&device).disable_graphs("another reason");
    let error = of(&own()).capture(|| x.exp()).unwrap_err();
    assert_contains(&error, &["disabled", "a replay computed a wrong result"]);
    // Graphs that were captured before still work.
    graph.replay().unwrap();
    assert_eq!(values(&out), [1f32.exp(); 10]);
}

#[test]
fn copies_into_a_tensor_check_their_arguments() {
    let device = own();
    let x = Tensor::zeros((2, 3), DType::F32, &device).unwrap();
    copy_to_tensor(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &x).unwrap();
    // A row of a larger tensor.
    copy_to_tensor(&[7f32, 8.0, 9.0], &x.narrow(0, 1, 1).unwrap()).unwrap();
    assert_eq!(values(&x), [1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
    assert_contains(&copy_to_tensor(&[1f32; 5], &x).unwrap_err(), &["5 values for 6 elements"]);
    assert_contains(&copy_to_tensor(&[1u32; 6], &x).unwrap_err(), &["F32", "U32"]);
    assert!(copy_to_tensor(&[1f32; 6], &x.t().unwrap()).is_err());
    let on_cpu = Tensor::zeros(6, DType::F32, &Device::Cpu).unwrap();
    assert_contains(&copy_to_tensor(&[1f32; 6], &on_cpu).unwrap_err(), &["not on a ROCm device"]);
    let large: Vec<u8> = (0..9 << 20).map(|i| (i % 251) as u8).collect();
    let target = Tensor::zeros(large.len(), DType::U8, &device).unwrap();
    copy_to_tensor(&large, &target).unwrap();
    assert_eq!(target.to_vec1::<u8>().unwrap(), large);
}
