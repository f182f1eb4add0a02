//! Many tensors of many sizes, made and dropped.
use super::Gpus;
use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const THREADS: usize = 8;
/// Tensors that a thread makes, and how many of them it holds at once.
const MADE: usize = 150;
const HELD: usize = 20;
/// Tensors that are dropped in random order.
const MANY: usize = 10_000;

/// A size between 1 element and 512 KiB, small ones as likely as large ones.
fn size(rng: &mut StdRng) -> usize {
    (1 << rng.random_range(0..17)) + rng.random_range(0..100)
}

/// Eight threads make and drop tensors, and check now and then that nobody else wrote into theirs.
pub fn on_threads(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let seeds: Vec<u64> = (0..THREADS).map(|_| rng.random()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            seeds.into_iter().map(|seed| scope.spawn(move || on_one_thread(gpus, seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("an allocating thread panicked"))
    })
}

fn on_one_thread(gpus: &Gpus, seed: u64) -> Result<()> {
    let device = gpus.first();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut held: Vec<(f32, Tensor)> = Vec::new();
    for made in 0..MADE {
        let value = (seed % 1000) as f32 + made as f32;
        held.push((value, Tensor::full(value, size(&mut rng), &device)?));
        if held.len() == HELD {
            let (value, tensor) = held.swap_remove(rng.random_range(0..HELD));
            if made % 8 == 0 {
                let (least, most) = (tensor.min_all()?, tensor.max_all()?);
                let found = [least.to_scalar::<f32>()?, most.to_scalar::<f32>()?];
                ensure!(found == [value; 2], "a tensor full of {value} holds {found:?}");
            }
        }
    }
    Ok(())
}

/// Ten thousand tensors, dropped in random order.
pub fn in_random_order(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let device = gpus.first();
    let make =
        |_| -> Result<Option<Tensor>> { Ok(Some(Tensor::zeros(size(rng) / 16 + 1, DType::U8, &device)?)) };
    let mut tensors: Vec<Option<Tensor>> = (0..MANY).map(make).collect::<Result<_>>()?;
    let mut order: Vec<usize> = (0..MANY).collect();
    order.shuffle(rng);
    order.into_iter().for_each(|place| tensors[place] = None);
    Ok(())
}
