//! Decoding steps in ranks as graphs, which contain the operations between ranks.
use candle_core::DType;
use candle_core::rocm::collective::{Communicator, Id};
use llm_engine::model::part::Part;
use llm_engine::model::{LoadOptions, load_part};
use serial_test::serial;

use super::steps::Runner;
use super::{devices, models, options};

/// Decodes on a thread for each of two ranks. Returns the logits of each rank, and its number of graphs.
fn decode(no_graphs: bool) -> Vec<(Vec<Vec<f32>>, usize)> {
    let (devices, path) = (devices(2), models::tiny_llama());
    let id = Id::new().unwrap();
    let work = |rank: usize| {
        let communicator = Communicator::new(&devices[rank], rank, 2, &id).unwrap();
        let options = LoadOptions { no_graphs, ..options(Some(DType::F16)) };
        let part = Part::of_rank(&communicator);
        let model = load_part(&path, part, &devices[rank], options, &mut |_| ()).unwrap();
        let mut runner = Runner::new(model, &[40, 30]);
        let mut logits = runner.step(&[(0, 9, true), (1, 5, true)]);
        for _ in 0..4 {
            logits.extend(runner.step(&[(0, 1, true), (1, 1, true)]));
            logits.extend(runner.step(&[(1, 1, true)]));
        }
        (logits, runner.model.graphs().count())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|rank| scope.spawn(move || work(rank)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
#[serial]
fn replayed_steps_equal_launched_steps() {
    let (launched, replayed) = (decode(true), decode(false));
    for ((launched, none), (replayed, graphs)) in launched.iter().zip(&replayed) {
        assert_eq!((launched, *none), (replayed, 0));
        // Two batches, of which one reaches a second width of block tables.
        assert!((2..=4).contains(graphs), "{graphs} graphs");
    }
    assert_eq!(replayed[0].0, replayed[1].0, "all ranks have the logits");
}
